// Package tensorwire carries tensors over gRPC without needless copies and allocations.
//
// Codec is a gRPC CodecV2 under the name "proto" which writes the same bytes as protobuf. Messages with the option
// tandem.wire.v1.codec, and structs that implement Message, are written as a small header plus the payload by
// reference, and read with one copy of the payload into memory that the receiver keeps from message to message. Unknown
// fields are skipped; a known field of another wire type is an error. Everything else goes through the ordinary codec.
// Client and server get it, with fixed flow-control windows, from DialOptions and ServerOptions; the two sides need not
// both use it.
//
// # Who owns the bytes
//
// Sending: the payload is borrowed from SendMsg until gRPC has written it, which is later than the return of SendMsg. A
// sender may overwrite it once the peer has answered that very message; otherwise it sends *Lent and waits
// for Released.
//
// Receiving: pass the same message to RecvMsg again and again. Its slices are overwritten in place, so that a payload
// is valid until the next RecvMsg into the message. Stream.Recv makes a new message each time and is as safe as ever.
package tensorwire

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that everything else uses
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Parts is the payload of a message: the slices follow each other on the wire.
type Parts struct {
	list  [][]byte
	bytes int
}

// Add appends a slice, which stays unchanged until it is written.
func (p *Parts) Add(b []byte) {
	if len(b) > 0 {
		p.list = append(p.list, b)
		p.bytes += len(b)
	}
}

// Len is the number of bytes.
func (p *Parts) Len() int { return p.bytes }

// Message is implemented by structs that write and read themselves: those of messages with the option
// tandem.wire.v1.go_struct, in generated code.
type Message interface {
	// Append appends the encoding of everything but the payload's bytes, which p gets: it ends with tag and length of the
	// payload's field, unless the payload is empty.
	Append(b []byte, p *Parts) []byte
	// ReadFrom replaces the message's content. It may keep nothing of r.
	ReadFrom(r *Reader) error
}

// Lent sends a message whose payload's owner wants to know when the bytes are his again. Both fields are set by the
// sender, who may use the value again for the next message after Released was called.
type Lent struct {
	// Message is a Message, or a generated message that the codec passes by reference.
	Message any
	// Released is called once per message that was marshalled, on any goroutine, when gRPC needs the payload no more: it
	// was written, or the stream failed. It must not block. A client's stream keeps its first messages for a transparent
	// retry until the server's headers have come, which is with the first answer, unless it was opened
	// with grpc.MaxRetryRPCBufferSize(1).
	Released func()
}

// Codec implements encoding.CodecV2.
type Codec struct{ fallback encoding.CodecV2 }

// NewCodec returns the codec.
func NewCodec() *Codec { return &Codec{encoding.GetCodecV2("proto")} }

// Name implements encoding.CodecV2. It is protobuf on the wire.
func (*Codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (c *Codec) Marshal(v any) (mem.BufferSlice, error) {
	var released func()
	if l, ok := v.(*Lent); ok {
		v, released = l.Message, l.Released
	}
	f := frames.Get().(*frame)
	if m, ok := v.(Message); ok {
		f.header = m.Append(f.header[:0], &f.parts)
	} else if p, ok := v.(proto.Message); ok {
		var known bool
		if f.header, known = appendGenerated(f.header[:0], &f.parts, p); !known {
			f.drop()
			return c.plain(p, released)
		}
	} else {
		f.drop()
		return nil, fmt.Errorf("tensorwire: %T is not a message", v)
	}
	return f.slice(released), nil
}

// plain is for messages that are copied.
func (c *Codec) plain(p proto.Message, released func()) (mem.BufferSlice, error) {
	data, err := c.fallback.Marshal(p)
	if released != nil {
		released()
	}
	return data, err
}

// Unmarshal implements encoding.CodecV2.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	r := readers.Get().(*Reader)
	r.reset(data)
	err, known := read(r, v)
	*r = Reader{}
	readers.Put(r)
	if known {
		return err
	}
	return c.fallback.Unmarshal(data, v)
}

func read(r *Reader, v any) (err error, known bool) {
	if m, ok := v.(Message); ok {
		if err := m.ReadFrom(r); err != nil {
			return err, true
		}
		return r.err, true
	}
	if readGenerated(r, v) {
		return r.err, true
	}
	return nil, false
}
