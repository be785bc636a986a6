package httpapi

import (
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/openai"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

type piece struct {
	ID    int32   `json:"id"`
	Piece *string `json:"piece,omitempty"`
	Bytes []int   `json:"bytes,omitempty"`
}

// tokenize serves /tokenize.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) error {
	o, m, _, err := s.turns.Read(r)
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
	ids, err := s.idsOf(w.Header(), r, o, m)
	if err != nil {
		return err
	}
	return writeTokens(w, m.Tokenizer, ids, withPieces)
}

// writeTokens writes the answer of /tokenize in parts: with pieces it may be 25 times as long as the text.
func writeTokens(w http.ResponseWriter, tok *tokenizer.Tokenizer, ids []int32, withPieces bool) error {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	b := append(make([]byte, 0, 2*answerPart), `{"tokens":[`...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		if withPieces {
			p, err := jsontext.Marshal(pieceOf(tok, id))
			if err != nil {
				return err
			}
			b = append(b, p...)
		} else {
			b = strconv.AppendInt(b, int64(id), 10)
		}
		if len(b) >= answerPart {
			if _, err := w.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	b = strconv.AppendInt(append(b, `],"count":`...), int64(len(ids)), 10)
	_, err := w.Write(append(b, "}\n"...))
	return err
}

// answerPart is how many bytes of a long answer are written at a time.
const answerPart = 32 << 10

// idsOf tokenises content, or a chat as the model would get it.
func (s *Server) idsOf(h http.Header, r *http.Request, o reqjson.Object, m *model.Model) ([]int32, error) {
	if o.Has("messages") {
		rendered, err := s.openai.Rendered(h, r, o, m)
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
	if len(text) > turn.MaxTokenize {
		return nil, apierror.Transport(http.StatusRequestEntityTooLarge,
			"'content' has %d bytes, at most %d are tokenised at a time", len(text), turn.MaxTokenize)
	}
	s.turns.Warn(h, &turn.Request{Body: o})
	return m.Tokenizer.Encode(text, tokenizer.Options{ParseSpecial: true}), nil
}

// pieceOf returns a token with its text, or with its bytes if they are no whole characters.
func pieceOf(tok *tokenizer.Tokenizer, id int32) piece {
	b := tok.TokenBytes(id)
	if utf8.Valid(b) {
		s := string(b)
		return piece{ID: id, Piece: &s}
	}
	p := piece{ID: id}
	for _, c := range b {
		p.Bytes = append(p.Bytes, int(c))
	}
	return p
}

// detokenize serves /detokenize.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) error {
	o, m, _, err := s.turns.Read(r)
	if err != nil {
		return err
	}
	ids, err := openai.ParseTokens(o, "tokens", m.Tokenizer.VocabSize())
	if err != nil {
		return err
	}
	if len(ids) > turn.MaxTokenize {
		return apierror.Transport(http.StatusRequestEntityTooLarge,
			"'tokens' has %d ids, at most %d are detokenised at a time", len(ids), turn.MaxTokenize)
	}
	s.turns.Warn(w.Header(), &turn.Request{Body: o})
	return writeJSON(w, http.StatusOK, map[string]string{"content": m.Tokenizer.Decode(ids, true)})
}

type templateBody struct {
	Prompt   string `json:"prompt"`
	Thinking bool   `json:"started_in_thinking"`
}

// applyTemplate serves /apply-template.
func (s *Server) applyTemplate(w http.ResponseWriter, r *http.Request) error {
	o, m, _, err := s.turns.Read(r)
	if err != nil {
		return err
	}
	rendered, err := s.openai.Rendered(w.Header(), r, o, m)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, templateBody{Prompt: rendered.Text(), Thinking: rendered.Thinking})
}
