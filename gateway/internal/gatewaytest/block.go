package gatewaytest

import (
	"sync/atomic"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// Say is a script that says text, step tokens a message, and ends its turn.
func Say(tok *tokenizer.Tokenizer, text string, step int) Decode {
	return said(tok, text, step).Run
}

func said(tok *tokenizer.Tokenizer, text string, step int) Script {
	ids := tok.Encode(text, tokenizer.Options{ParseSpecial: true})
	return Script{Tokens: ids, Step: step, Stop: tok.StopTokens()[0]}
}

// DieAt is a script that says text and breaks with err before token n, the first times that it gets there.
func DieAt(tok *tokenizer.Tokenizer, text string, n int, times int32, err error) Decode {
	var died atomic.Int32
	s := said(tok, text, 1)
	s.Before = func(i int, _ tandemv1.TargetService_DecodeServer) error {
		if i == n && died.Add(1) <= times {
			return err
		}
		return nil
	}
	return s.Run
}

// Block is a script that sends one token, then waits for its context to end or for Release, and announces both.
type Block struct {
	// Admitted gets a value when a request waits, Cancelled when its context ended.
	Admitted, Cancelled chan struct{}
	// Release is closed by the test.
	Release chan struct{}
}

// NewBlock returns a Block.
func NewBlock() *Block {
	return &Block{
		Admitted: make(chan struct{}, 100), Cancelled: make(chan struct{}, 100), Release: make(chan struct{}),
	}
}

// Script says text.
func (b *Block) Script(tok *tokenizer.Tokenizer, text string) Decode {
	s := said(tok, text, 1)
	s.Before = func(i int, stream tandemv1.TargetService_DecodeServer) error {
		if i != 1 {
			return nil
		}
		b.Admitted <- struct{}{}
		select {
		case <-stream.Context().Done():
			b.Cancelled <- struct{}{}
			return stream.Context().Err()
		case <-b.Release:
			return nil
		}
	}
	return s.Run
}
