package openai

import (
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
)

// TestSuffixNamesTheMissingToken: the reason is the true one.
func TestSuffixNamesTheMissingToken(t *testing.T) {
	m, err := model.Load(model.Options{Path: gatewaytest.ModelPath(t, gatewaytest.Target)})
	if err != nil {
		t.Fatal(err)
	}
	defer func(marks [3]string) { fillMarks = marks }(fillMarks)
	fillMarks[1] = "<|no such mark|>"
	o, err := reqjson.Parse([]byte(`{"prompt":"a","suffix":"b"}`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = parseSuffix(o, m)
	if e := apierror.From(err); e == nil || e.Status != 400 || e.Param != "suffix" ||
		e.Message != `'suffix' needs a vocabulary with the token <|no such mark|>, which this model's lacks` {
		t.Errorf("%v", err)
	}
}

// TestCandidatesAreSpelledApart: tokens of the same text keep their entries.
func TestCandidatesAreSpelledApart(t *testing.T) {
	c := &classic{tok: gatewaytest.Tokenizer(t)}
	same := emit.Candidate{ID: 40, Logprob: -1}
	text := string(c.tok.TokenBytes(40))
	c.add(emit.Entry{Candidate: same, Top: []emit.Candidate{same, same, {ID: 41, Logprob: -2}}}, true)
	if got, want := string(c.top), `{"`+text+`":-1,"token_id:40":-1,"`+string(c.tok.TokenBytes(41))+`":-2}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
