package tensorwire

import (
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// BenchmarkCodec times the codec alone for the messages of the speculation stream: features of 92,160 bytes, which
// arrive in pieces of 16 KiB as gRPC delivers them, and a proposal of 22 nodes.
func BenchmarkCodec(b *testing.B) {
	answer := &tandemv1.SpeculateResponse{Epoch: 3, Step: 70000, Length: 4009, AppendUs: 300, ForwardUs: 2000, BuildUs: 40}
	for i := range int32(22) {
		answer.Tokens, answer.Parents = append(answer.Tokens, 1000+i*977), append(answer.Parents, i)
		answer.Logprobs = append(answer.Logprobs, -float32(i)/7)
	}
	c := NewCodec()
	for _, m := range []struct {
		name string
		proto.Message
	}{
		{"request", &tandemv1.SpeculateRequest{
			SessionId: "session-1", Epoch: 3, Step: 70000, FeaturePosition: 4000, FeatureRows: 9, FeatureEncoding: 2,
			Propose:  &tandemv1.Propose{Anchor: 1234, Position: 4009, Budget: 22, Block: 16, Mode: 3, DeadlineUs: 9000},
			Features: make([]byte, 92160)}}, {"response", answer},
	} {
		b.Run("write "+m.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				data, err := c.Marshal(m.Message)
				if err != nil {
					b.Fatal(err)
				}
				data.Free()
			}
		})
		wire, err := proto.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		var pieces mem.BufferSlice
		for ; len(wire) > 16<<10; wire = wire[16<<10:] {
			pieces = append(pieces, mem.SliceBuffer(wire[:16<<10]))
		}
		pieces = append(pieces, mem.SliceBuffer(wire))
		into := m.ProtoReflect().New().Interface()
		b.Run("read "+m.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Unmarshal(pieces, into); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
