package shared

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	// mostLarge bounds a value in parts, before it is compressed.
	mostLarge = 64 << 20
	// mostParts bounds the parts of a value.
	mostParts = 64
)

// The first byte of a value that Pack made.
const (
	whole   = 'w' // the compressed value follows
	inParts = 'p' // a JSON object follows that names the parts
)

// parts names the records that hold a value.
type parts struct {
	ID    string `json:"id"`
	Count int    `json:"count"`
}

func (p *parts) key(i int) string { return fmt.Sprintf("parts/%s/%d", p.ID, i) }

// Pack compresses a value for one record. What does not fit is written into further records, which live as long as
// theirs: they have to be written before it.
func (l *Link) Pack(ctx context.Context, value []byte, life Life) ([]byte, error) {
	if len(value) > mostLarge {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(value), mostLarge)
	}
	var packed bytes.Buffer
	packed.WriteByte(whole)
	w, err := flate.NewWriter(&packed, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err = w.Write(value); err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, err
	}
	if packed.Len() <= l.MaxValue() {
		return packed.Bytes(), nil
	}
	rest := packed.Bytes()[1:]
	p := parts{ID: strings.ToLower(rand.Text())}
	if len(rest) > mostParts*l.MaxValue() {
		return nil, fmt.Errorf("%w: %d bytes when compressed", ErrTooLarge, len(rest))
	}
	for ; len(rest) > 0; p.Count++ {
		n := min(len(rest), l.MaxValue())
		err := l.Do(ctx, func(ctx context.Context, s Store) error {
			_, err := s.Put(ctx, p.key(p.Count), rest[:n], life)
			return err
		})
		if err != nil {
			return nil, err
		}
		rest = rest[n:]
	}
	head, err := json.Marshal(p)
	return append([]byte{inParts}, head...), err
}

// Unpack returns what Pack was given.
func (l *Link) Unpack(ctx context.Context, value []byte) ([]byte, error) {
	if len(value) == 0 {
		return nil, errors.New("the value is empty")
	}
	packed := value[1:]
	switch value[0] {
	case whole:
	case inParts:
		var p parts
		if err := json.Unmarshal(packed, &p); err != nil || p.Count < 0 || p.Count > mostParts {
			return nil, fmt.Errorf("the value's parts cannot be read: %w", errors.Join(err, errors.New("bad count")))
		}
		packed = nil
		for i := range p.Count {
			err := l.Do(ctx, func(ctx context.Context, s Store) error {
				r, err := s.Get(ctx, p.key(i))
				packed = append(packed, r.Value...)
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	default:
		return nil, errors.New("the value is of another version")
	}
	out, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), mostLarge+1))
	if err == nil && len(out) > mostLarge {
		err = ErrTooLarge
	}
	return out, err
}

// DropParts removes what Pack wrote beside a value.
func (l *Link) DropParts(ctx context.Context, value []byte) {
	var p parts
	if len(value) == 0 || value[0] != inParts || json.Unmarshal(value[1:], &p) != nil || p.Count > mostParts {
		return
	}
	for i := range p.Count {
		// What stays goes by its time to live.
		_ = l.Do(ctx, func(ctx context.Context, s Store) error { return s.Delete(ctx, p.key(i), AnyVersion) })
	}
}
