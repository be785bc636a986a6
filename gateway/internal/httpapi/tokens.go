package httpapi

import (
	"io"
	"net/http"
	"unicode/utf8"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/openai"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// parse reads the body and finds the model.
func (s *Server) parse(r *http.Request) (reqjson.Object, *model.Model, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return reqjson.Object{}, nil, err
	}
	o, err := reqjson.Parse(body)
	if err != nil {
		return o, nil, err
	}
	m, err := s.model()
	return o, m, err
}

// maxTokenize bounds a text of /tokenize, which no context bounds: a single endless word takes 28 bytes of memory a byte.
const maxTokenize = 16 << 20

type tokensBody struct {
	Tokens any `json:"tokens"`
	Count  int `json:"count"`
}

type piece struct {
	ID    int32   `json:"id"`
	Piece *string `json:"piece,omitempty"`
	Bytes []int   `json:"bytes,omitempty"`
}

// tokenize serves /tokenize.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) error {
	o, m, err := s.parse(r)
	if err != nil {
		return err
	}
	withPieces, _, err := o.Bool("with_pieces")
	if err != nil {
		return err
	}
	// The vocabulary has no tokens that are added around a text; the field is checked and has no effect.
	if _, _, err := o.Bool("add_special"); err != nil {
		return err
	}
	ids, err := s.idsOf(r, o, m)
	if err != nil {
		return err
	}
	out := tokensBody{Tokens: ids, Count: len(ids)}
	if withPieces {
		out.Tokens = pieces(m.Tokenizer, ids)
	}
	return writeJSON(w, http.StatusOK, out)
}

// idsOf tokenises content, or a chat as the model would get it.
func (s *Server) idsOf(r *http.Request, o reqjson.Object, m *model.Model) ([]int32, error) {
	if o.Has("messages") {
		rendered, err := s.openai.Rendered(r, o, m)
		if err != nil {
			return nil, err
		}
		return rendered.Tokens, nil
	}
	text, ok, err := o.String("content")
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, reqerr.Missing("content")
	}
	if len(text) > maxTokenize {
		return nil, apierror.Transport(http.StatusRequestEntityTooLarge, "'content' has %d bytes, at most %d are tokenised at a time", len(text), maxTokenize)
	}
	return m.Tokenizer.Encode(text, tokenizer.Options{ParseSpecial: true}), nil
}

func pieces(tok *tokenizer.Tokenizer, ids []int32) []piece {
	out := make([]piece, len(ids))
	for i, id := range ids {
		b := tok.TokenBytes(id)
		out[i].ID = id
		if utf8.Valid(b) {
			s := string(b)
			out[i].Piece = &s
			continue
		}
		for _, c := range b {
			out[i].Bytes = append(out[i].Bytes, int(c))
		}
	}
	return out
}

// detokenize serves /detokenize.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) error {
	o, m, err := s.parse(r)
	if err != nil {
		return err
	}
	ids, err := openai.ParseTokens(o, "tokens", m.Tokenizer.VocabSize())
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]string{"content": m.Tokenizer.Decode(ids, true)})
}

type templateBody struct {
	Prompt   string `json:"prompt"`
	Thinking bool   `json:"started_in_thinking"`
}

// applyTemplate serves /apply-template.
func (s *Server) applyTemplate(w http.ResponseWriter, r *http.Request) error {
	o, m, err := s.parse(r)
	if err != nil {
		return err
	}
	rendered, err := s.openai.Rendered(r, o, m)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, templateBody{Prompt: rendered.Text(), Thinking: rendered.Thinking})
}
