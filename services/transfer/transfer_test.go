package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source sends pieces of n zero bytes, count of them (-1 = for ever), each after pause, until ctx ends.
func source(ctx context.Context, n, count int, pause time.Duration) func() ([]byte, error) {
	return func() ([]byte, error) {
		if count == 0 {
			return nil, io.EOF
		}
		count--
		select {
		case <-time.After(pause):
			return make([]byte, n), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// TestReceive: a file arrives whole and as announced, or nothing of it stays; what sends without end, too slowly or
// nothing is given up.
func TestReceive(t *testing.T) {
	broken := errors.New("connection reset")
	sum := sha256.Sum256(make([]byte, 3000))
	digest := hex.EncodeToString(sum[:])
	for _, test := range []struct {
		name   string
		limits Limits
		n      int
		count  int
		pause  time.Duration
		fail   bool
		want   codes.Code
	}{
		{"whole", Limits{Total: 3000, Most: 5000, Digest: digest}, 1000, 3, time.Second, false, codes.OK},
		{"other bytes", Limits{Total: 2000, Most: 5000, Digest: digest}, 1000, 2, 0, false, codes.DataLoss},
		{"size of nothing", Limits{Total: 0, Most: 5000}, 1000, 3, 0, false, codes.InvalidArgument},
		{"negative size", Limits{Total: -1, Most: 5000}, 1000, 3, 0, false, codes.InvalidArgument},
		{"announced too large", Limits{Total: 5001, Most: 5000}, 1000, 3, 0, false, codes.InvalidArgument},
		{"larger than any disk", Limits{Total: 1 << 60, Most: 1 << 61}, 1000, 3, 0, false, codes.ResourceExhausted},
		{"without end", Limits{Total: 3000, Most: 5000}, 1000, -1, 0, false, codes.DataLoss},
		{"cut off", Limits{Total: 3000, Most: 5000}, 1000, 2, 0, false, codes.DataLoss},
		{"silent", Limits{Total: 3000, Most: 5000}, 1000, 3, time.Hour, false, codes.DeadlineExceeded},
		{"empty pieces", Limits{Total: 3000, Most: 5000}, 0, -1, time.Second, false, codes.DeadlineExceeded},
		{"drop by drop", Limits{Total: 3000, Most: 5000}, 1, -1, 10 * time.Second, false, codes.DeadlineExceeded},
		{"broken", Limits{Total: 3000, Most: 5000}, 1000, 3, 0, true, codes.Unknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			racetest.Bubble(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				next := source(ctx, test.n, test.count, test.pause)
				if test.fail {
					next = func() ([]byte, error) { return nil, broken }
				}
				path, err := Receive(ctx, dir, "file-*.part", test.limits, next)
				switch {
				case test.fail && !errors.Is(err, broken), !test.fail && err != nil && rpcerr.Code(err) != test.want,
					err == nil && test.want != codes.OK:
					t.Errorf("%q, %v, want %v", path, err, test.want)
				}
				left, _ := filepath.Glob(filepath.Join(dir, "*"))
				if err != nil {
					if len(left) > 0 {
						t.Errorf("left behind: %v", left)
					}
					return
				}
				if data, err := os.ReadFile(path); err != nil || len(data) != 3000 || len(left) != 1 {
					t.Errorf("%d bytes, %v, files %v", len(data), err, left)
				}
			})
		})
	}
}

// TestSend: a file goes in pieces, each in a buffer of its own, until an error of the way or of the file.
func TestSend(t *testing.T) {
	for _, n := range []int{0, 1, 8, 9, 16} {
		var pieces [][]byte
		file := bytes.Repeat([]byte("12345678"), 2)[:n]
		if err := Send(bytes.NewReader(file), 8, func(piece []byte) error {
			pieces = append(pieces, piece)
			return nil
		}); err != nil {
			t.Error(err)
		}
		if len(pieces) != (n+7)/8 || !bytes.Equal(bytes.Join(pieces, nil), file) {
			t.Errorf("%d bytes: pieces %q", n, pieces)
		}
	}
	broken := errors.New("broken")
	sent := 0
	err := Send(bytes.NewReader(make([]byte, 20)), 8, func([]byte) error { sent++; return broken })
	if !errors.Is(err, broken) || sent != 1 {
		t.Errorf("%v after %d pieces, want the first to end it", err, sent)
	}
	if err := Send(iotest.ErrReader(broken), 8, func([]byte) error { return nil }); !errors.Is(err, broken) {
		t.Errorf("%v, want the file's error", err)
	}
}
