package bodybudget

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestBudget: what is held together stays below the bound, small requests always pass, and all comes back.
func TestBudget(t *testing.T) {
	const whole = 64 << 20
	b := New(whole)
	read := func(s *Share, n int) error {
		_, err := io.Copy(io.Discard, s.Reader(io.NopCloser(bytes.NewReader(make([]byte, n)))))
		return err
	}
	large, second := b.Share(), b.Share()
	if err := read(large, (whole+free)/PerByte); err != nil {
		t.Fatal(err)
	}
	if err := read(second, 1<<20); !errors.Is(err, rpcerr.QueueFull) || rpcerr.RetryAfter(err) == 0 {
		t.Errorf("beyond the bound: %v", err)
	}
	if b.Used() > whole {
		t.Errorf("%d bytes are held", b.Used())
	}
	for range 1000 {
		if err := read(b.Share(), 64<<10); err != nil {
			t.Fatalf("a small request: %v", err)
		}
	}
	second.Release()
	large.Release()
	large.Release()
	if b.Used() != 0 {
		t.Errorf("%d bytes are never given back", b.Used())
	}
	third := b.Share()
	if err := read(third, 1<<20); err != nil {
		t.Errorf("after the release: %v", err)
	}
	third.Release()
	if err := read(b.Share(), whole/PerByte*2); rpcerr.Reason(err) != reqerr.ReasonBodyTooLarge ||
		!strings.Contains(err.Error(), "--body-memory-mb") {
		t.Errorf("a body that can never fit: %v", err)
	}
	var none *Budget
	if err := read(none.Share(), 1<<20); err != nil {
		t.Errorf("without a bound: %v", err)
	}
	none.Share().Release()
}

// TestCost: structure is counted wherever reading may find it, however the body is cut into pieces.
func TestCost(t *testing.T) {
	for body, want := range map[string]int64{
		`{"a":"b","c":[[],1]}`:                PerObject + 2*perArray + 2*PerValue,
		"{\"a\":[ 1 ,\n-2,3, 4,\"5\",6,null]": PerObject + perArray + 3*PerNumber + 3*PerValue,
		`{"a":{"b":[1,2]},"c":[[1,2]]`:        2*PerObject + 3*perArray + 2*PerValue + PerNumber,
		`{"a":1,"b":2}`:                       PerObject + PerValue,
		`["a, {b}, \"{,\\", "c [{,"]`:         perArray + PerValue,
		`[" \n{\"a\":[1,2]}"]`:                perArray + perTextObject + perArray + perTextValue,
		`["\u007b\"a\":\u007B}, \u005b","{"]`: perArray + PerValue + 3*perTextObject + perTextValue + perArray,
	} {
		want += int64(len(body)) * PerByte
		var whole, pieces scan
		if got := whole.add([]byte(body)); got != want {
			t.Errorf("%s: %d, want %d", body, got, want)
		}
		got := int64(0)
		for i := range len(body) {
			got += pieces.add([]byte(body[i : i+1]))
		}
		if got != want {
			t.Errorf("%s in pieces: %d, want %d", body, got, want)
		}
	}
	for text, want := range map[string]int64{
		"":                    0,
		"a {, [":              0,
		` {"a":"{",` + "\n2}": 2*perTextObject + perTextValue,
	} {
		want += int64(len(text)) * PerByte
		if got := OfText(text); got != want {
			t.Errorf("%s as text: %d, want %d", text, got, want)
		}
	}
}

// TestScanAllocatesNothing: it sees every body.
func TestScanAllocatesNothing(t *testing.T) {
	body := []byte(`{"messages":[{"role":"user","content":"{\"a\":1}"}]}`)
	if n := testing.AllocsPerRun(100, func() { new(scan).add(body) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestMemoryIsGivenBack: once, after the last body of a peak, and not after small ones.
func TestMemoryIsGivenBack(t *testing.T) {
	b := New(1 << 30)
	freed := make(chan int64, 10)
	b.free = func() { freed <- b.Used() }
	small := b.Share()
	if err := small.Add(peak / 2); err != nil {
		t.Fatal(err)
	}
	small.Release()
	first, second := b.Share(), b.Share()
	if err := errors.Join(first.Add(2*peak), second.Add(2*peak)); err != nil {
		t.Fatal(err)
	}
	first.Release()
	second.Release()
	if used := testwait.For(t, freed, "memory is given back"); used != 0 {
		t.Errorf("given back while %d bytes are held", used)
	}
	if len(freed) != 0 {
		t.Error("given back twice")
	}
}
