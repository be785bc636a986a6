package grpcapi

import (
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/bodybudget"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// TestMessagesAreWeighedUndecoded: what does not fit is refused before anything is made of it, for its bytes or for its
// parts, without an error of the codec, which callers would see as INTERNAL; what fits is decoded as ever.
func TestMessagesAreWeighedUndecoded(t *testing.T) {
	messages := &tandemv1.Chat{}
	for range 10_000 {
		messages.Messages = append(messages.Messages, &tandemv1.Message{})
	}
	for name, c := range map[string]struct {
		msg  *tandemv1.GenerateRequest
		fits bool
	}{
		"small":   {&tandemv1.GenerateRequest{Model: "m", Stop: []string{"a", "b"}}, true},
		"bytes":   {&tandemv1.GenerateRequest{Model: strings.Repeat("x", 2<<20)}, false},
		"parts":   {&tandemv1.GenerateRequest{Input: &tandemv1.GenerateRequest_Chat{Chat: messages}}, false},
		"unknown": {unknownFields(t, 1<<20), false},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := proto.Marshal(c.msg)
			if err != nil {
				t.Fatal(err)
			}
			budget := bodybudget.New(32 << 20)
			busy := budget.Share()
			if err := busy.Add(20 << 20); err != nil {
				t.Fatal(err)
			}
			got := &tandemv1.GenerateRequest{}
			l := &limited{msg: got, share: budget.Share()}
			if err := (codec{encoding.GetCodecV2("proto")}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)},
				l); err != nil {
				t.Fatal(err)
			}
			if c.fits && (l.err != nil || !proto.Equal(got, c.msg)) {
				t.Errorf("got %v, %v", got, l.err)
			}
			if !c.fits && (rpcerr.Code(l.err) != codes.ResourceExhausted || rpcerr.RetryAfter(l.err) == 0 ||
				proto.Size(got) > 0) {
				t.Errorf("%d bytes were decoded: %v", proto.Size(got), l.err)
			}
		})
	}
}

// unknownFields is a message of n fields that this version does not know.
func unknownFields(t *testing.T, n int) *tandemv1.GenerateRequest {
	m := &tandemv1.GenerateRequest{}
	if err := proto.Unmarshal([]byte(strings.Repeat("\xf8\x7f\x01", n)), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestCost: a message costs what its JSON would, by its parts.
func TestCost(t *testing.T) {
	for name, c := range map[string]struct {
		msg  proto.Message
		want int64
	}{
		"empty":   {&tandemv1.GenerateRequest{}, 0},
		"text":    {&tandemv1.GenerateRequest{Model: "m"}, bodybudget.PerValue},
		"texts":   {&tandemv1.GenerateRequest{Stop: []string{"a", "b"}}, 2 * bodybudget.PerValue},
		"numbers": {&tandemv1.DetokenizeRequest{Ids: []int32{1, 200, 70_000}}, 3 * bodybudget.PerNumber},
		"message": {&tandemv1.GenerateRequest{Sampling: &tandemv1.Sampling{TopK: proto.Int32(1)}},
			2*bodybudget.PerValue + bodybudget.PerObject},
	} {
		data, err := proto.Marshal(c.msg)
		if err != nil {
			t.Fatal(err)
		}
		if got := costOf(c.msg.ProtoReflect().Descriptor(), data); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		for cut := range data {
			costOf(c.msg.ProtoReflect().Descriptor(), data[:cut])
		}
	}
}
