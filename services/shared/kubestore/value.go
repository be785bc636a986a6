package kubestore

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// Names of a record's value in its Secret: as it is, or compressed where that is shorter.
const (
	plainValue  = "value"
	packedValue = "value.gz"
)

// pack is a value as a Secret has it.
func pack(value []byte) (map[string][]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(value); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if b.Len() < len(value) {
		return map[string][]byte{packedValue: b.Bytes()}, nil
	}
	return map[string][]byte{plainValue: value}, nil
}

// unpack reads it. A Secret that somebody else changed is an error, and takes no more memory than a value may.
func unpack(data map[string][]byte) ([]byte, error) {
	packed, ok := data[packedValue]
	if !ok {
		value, ok := data[plainValue]
		if !ok {
			return nil, errors.New("holds no value")
		}
		return value, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", packedValue, err)
	}
	value, err := io.ReadAll(io.LimitReader(r, maxValue+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", packedValue, err)
	}
	if len(value) > maxValue {
		return nil, fmt.Errorf("%s: holds more than %d bytes", packedValue, maxValue)
	}
	return value, nil
}
