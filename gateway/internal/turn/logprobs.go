package turn

import (
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// AppendEntries appends the entries of content tokens as chat and Responses show them, separated by commas.
func AppendEntries(dst []byte, tok *tokenizer.Tokenizer, list []emit.Entry) []byte {
	for i, e := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '{')
		dst = appendCandidate(dst, tok, e.Candidate)
		dst = append(dst, `,"top_logprobs":[`...)
		for j, c := range e.Top {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, '{')
			dst = appendCandidate(dst, tok, c)
			dst = append(dst, '}')
		}
		dst = append(dst, ']', '}')
	}
	return dst
}

func appendCandidate(dst []byte, tok *tokenizer.Tokenizer, c emit.Candidate) []byte {
	b := tok.TokenBytes(c.ID)
	dst = append(dst, `"token":`...)
	dst = jsontext.AppendString(dst, b)
	dst = append(dst, `,"logprob":`...)
	dst = jsontext.AppendFloat(dst, c.Logprob)
	dst = append(dst, `,"bytes":`...)
	return jsontext.AppendBytes(dst, b)
}
