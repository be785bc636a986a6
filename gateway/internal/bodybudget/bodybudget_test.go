package bodybudget

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestBudget: what is held together stays below the bound, small requests always pass, and all comes back.
func TestBudget(t *testing.T) {
	b := New(1 << 20)
	read := func(s *Share, n int) error {
		_, err := io.Copy(io.Discard, s.Reader(io.NopCloser(bytes.NewReader(make([]byte, n)))))
		return err
	}
	large, second := b.Share(), b.Share()
	if err := read(large, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := read(second, 200<<10); !errors.Is(err, rpcerr.QueueFull) || rpcerr.RetryAfter(err) == 0 {
		t.Errorf("beyond the bound: %v", err)
	}
	if b.Used() > 1<<20 {
		t.Errorf("%d bytes are held", b.Used())
	}
	for range 1000 {
		if err := read(b.Share(), step); err != nil {
			t.Fatalf("a small request: %v", err)
		}
	}
	second.Release()
	large.Release()
	large.Release()
	if b.Used() != 0 {
		t.Errorf("%d bytes are never given back", b.Used())
	}
	if err := read(b.Share(), 1<<20); err != nil {
		t.Errorf("after the release: %v", err)
	}
	var none *Budget
	if err := read(none.Share(), 1<<20); err != nil {
		t.Errorf("without a bound: %v", err)
	}
	none.Share().Release()
}

// TestMemoryIsGivenBack: once, after the last body of a peak, and not after small ones.
func TestMemoryIsGivenBack(t *testing.T) {
	b := New(1 << 30)
	freed := make(chan int64, 10)
	b.free = func() { freed <- b.Used() }
	small := b.Share()
	if err := small.Add(1 << 20); err != nil {
		t.Fatal(err)
	}
	small.Release()
	first, second := b.Share(), b.Share()
	if err := errors.Join(first.Add(peak), second.Add(peak)); err != nil {
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
