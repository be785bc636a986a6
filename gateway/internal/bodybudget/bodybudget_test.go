package bodybudget

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// readAll reads a body of a share.
func readAll(s *Share, body io.Reader, length int64) error {
	r, err := s.Reader(io.NopCloser(body), length, func() {})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r)
	return err
}

// TestBudget: what is held together stays below the bound, small requests always pass, and all comes back.
func TestBudget(t *testing.T) {
	const whole = 64 << 20
	b := New(whole)
	read := func(s *Share, n int) error {
		return readAll(s, bytes.NewReader(make([]byte, n)), -1)
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

// TestLengthIsReserved: a body whose length is known has its room before a byte of it is read, and is refused then.
func TestLengthIsReserved(t *testing.T) {
	const whole = 64 << 20
	b := New(whole)
	first := b.Share()
	body, err := first.Reader(io.NopCloser(strings.NewReader(`[1,2]`)), whole/2/PerByte-100, func() {})
	if err != nil || b.Used() < whole/2-free-step || b.Used() > whole/2 {
		t.Fatalf("%d bytes are held before the first is read: %v", b.Used(), err)
	}
	held := b.Used()
	if _, err := io.Copy(io.Discard, body); err != nil || b.Used() != held {
		t.Errorf("the bytes were counted twice: %d, then %d: %v", held, b.Used(), err)
	}
	unread := io.NopCloser(iotest.ErrReader(errors.New("read")))
	second := b.Share()
	if _, err := second.Reader(unread, whole*3/4/PerByte, func() {}); !errors.Is(err, rpcerr.QueueFull) {
		t.Errorf("a second body: %v", err)
	}
	second.Release()
	third := b.Share()
	if _, err := third.Reader(unread, whole, func() {}); rpcerr.Reason(err) != reqerr.ReasonBodyTooLarge {
		t.Errorf("a body that can never fit: %v", err)
	}
	third.Release()
	first.Release()
	if b.Used() != 0 {
		t.Errorf("%d bytes are never given back", b.Used())
	}
}

// arriving is a body that a test sends piece by piece. It ends when it is aborted, as a connection does.
type arriving struct {
	pieces  chan int64
	aborted chan struct{}
	share   *Share
	err     chan error
}

var errAborted = errors.New("aborted")

// Read implements io.Reader.
func (a *arriving) Read(p []byte) (int, error) {
	select {
	case n, ok := <-a.pieces:
		if !ok {
			return 0, io.EOF
		}
		return int(min(n, int64(len(p)))), nil
	case <-a.aborted:
		return 0, errAborted
	}
}

// begin reads a body on a goroutine of its own; release says whether its share ends with the reading.
func begin(t *testing.T, b *Budget, length int64, release bool) *arriving {
	a := &arriving{pieces: make(chan int64), aborted: make(chan struct{}), share: b.Share(), err: make(chan error, 1)}
	r, err := a.share.Reader(io.NopCloser(a), length, func() { close(a.aborted) })
	if err != nil {
		t.Error(err)
		return a
	}
	go func() {
		piece := make([]byte, 8<<20)
		for err == nil {
			_, err = r.Read(piece)
		}
		if err == io.EOF {
			err = nil
		}
		if err != nil || release {
			a.share.Release()
		}
		a.err <- err
	}()
	return a
}

// TestLastBegunGivesWay: bodies that arrive together and do not fit never block each other, whatever order their bytes
// come in: the first is read as a whole, and those that give way are the last, also while their clients send nothing.
func TestLastBegunGivesWay(t *testing.T) {
	const whole = 64 << 20
	racetest.Bubble(t, func(t *testing.T) {
		b := New(whole)
		part := int64(whole / PerByte / 4)
		first, second, third := begin(t, b, -1, true), begin(t, b, -1, true), begin(t, b, -1, true)
		for _, a := range []*arriving{third, second, first} {
			a.pieces <- part
		}
		synctest.Wait()
		// The fourth quarter and more: the third body holds enough.
		first.pieces <- part * 3 / 2
		if err := <-third.err; !errors.Is(err, rpcerr.QueueFull) {
			t.Errorf("the third body ends with %v", err)
		}
		// Nothing is left for the second, and nobody begun later.
		second.pieces <- part * 2
		if err := <-second.err; !errors.Is(err, rpcerr.QueueFull) {
			t.Errorf("the second body ends with %v", err)
		}
		close(first.pieces)
		if err := <-first.err; err != nil {
			t.Errorf("the first body: %v", err)
		}
		if b.Used() != 0 || len(b.reading) != 0 {
			t.Errorf("%d bytes of %d bodies are never given back", b.Used(), len(b.reading))
		}
	})
}

// TestWhoWaitsGivesWayToo: a body that waits for room which a later one gives up makes room itself for an earlier one.
func TestWhoWaitsGivesWayToo(t *testing.T) {
	const whole = 64 << 20
	racetest.Bubble(t, func(t *testing.T) {
		b := New(whole)
		part := int64(whole / PerByte / 4)
		first, second := begin(t, b, -1, true), begin(t, b, -1, true)
		// The third gives way only when the test lets it.
		third := b.Share()
		gone := make(chan struct{})
		if _, err := third.Reader(io.NopCloser(strings.NewReader("")), part*2, func() { close(gone) }); err != nil {
			t.Fatal(err)
		}
		first.pieces <- part
		second.pieces <- part
		synctest.Wait()
		second.pieces <- part
		<-gone
		// The second waits. The first asks for more than the third holds.
		first.pieces <- part * 5 / 2
		if err := <-second.err; !errors.Is(err, rpcerr.QueueFull) {
			t.Errorf("the second body ends with %v", err)
		}
		third.Release()
		close(first.pieces)
		if err := <-first.err; err != nil {
			t.Errorf("the first body: %v", err)
		}
	})
}

// TestWorkKeepsItsMemory: a body that was read as a whole does not give way, and neither do others where that would not
// help.
func TestWorkKeepsItsMemory(t *testing.T) {
	const whole = 64 << 20
	racetest.Bubble(t, func(t *testing.T) {
		b := New(whole)
		part := int64(whole / PerByte / 4)
		first, second, third := begin(t, b, -1, true), begin(t, b, -1, false), begin(t, b, -1, true)
		second.pieces <- part * 2
		close(second.pieces)
		if err := <-second.err; err != nil {
			t.Fatal(err)
		}
		third.pieces <- part
		synctest.Wait()
		first.pieces <- part * 5 / 2
		if err := <-first.err; !errors.Is(err, rpcerr.QueueFull) {
			t.Errorf("the first body ends with %v", err)
		}
		close(third.pieces)
		if err := <-third.err; err != nil {
			t.Errorf("the third body gave way in vain: %v", err)
		}
		second.share.Release()
		if b.Used() != 0 {
			t.Errorf("%d bytes are never given back", b.Used())
		}
	})
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
		if got := OfText([]byte(text)); got != want {
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
