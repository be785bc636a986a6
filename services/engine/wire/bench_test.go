package wire

import (
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// BenchmarkWire times the codec alone for a verified tree of 23 rows: its request, and its answer with 92,160 bytes of
// features, which arrive in pieces of 16 KiB as gRPC delivers them.
func BenchmarkWire(b *testing.B) {
	step := &engine.Step{Features: engine.FeatureRawBF16}
	result := &engine.StepResult{Features: make([]byte, 92160)}
	for i := range int32(23) {
		step.Rows = append(step.Rows, engine.Row{Token: 1000 + i*977, Position: 4000 + i, Parent: i - 1,
			Want: engine.WantToken, Mask: -1})
		result.Tokens = append(result.Tokens, 1000+i*977)
		result.Logprobs = append(result.Logprobs, -float32(i)/7)
	}
	c := tensorwire.NewCodec()
	for _, m := range []struct {
		name        string
		write, read tensorwire.Message
	}{
		{"request", &StepRequest{Request: Request{70000}, Step: step}, &StepRequest{Step: &engine.Step{}}},
		{"response", &StepResponse{Response: Response{ID: 70000, Nanos: 9e6}, Result: result},
			&StepResponse{Result: &engine.StepResult{}}},
	} {
		b.Run("write "+m.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				data, err := c.Marshal(m.write)
				if err != nil {
					b.Fatal(err)
				}
				data.Free()
			}
		})
		data, err := c.Marshal(m.write)
		if err != nil {
			b.Fatal(err)
		}
		wire := data.Materialize()
		var pieces mem.BufferSlice
		for ; len(wire) > 16<<10; wire = wire[16<<10:] {
			pieces = append(pieces, mem.SliceBuffer(wire[:16<<10]))
		}
		pieces = append(pieces, mem.SliceBuffer(wire))
		b.Run("read "+m.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Unmarshal(pieces, m.read); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
