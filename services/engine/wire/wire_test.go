package wire

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

func number(r *rand.Rand) int32 {
	switch r.IntN(4) {
	case 0:
		return 0
	case 1:
		return -1
	case 2:
		return int32(r.IntN(300))
	}
	return int32(r.Uint32())
}

func float(r *rand.Rand) float32 { return float32(r.NormFloat64()) * float32(r.IntN(2)) }

func words(r *rand.Rand, n int) []uint32 {
	if n == 0 {
		return nil
	}
	out := make([]uint32, n)
	for i := range out {
		out[i] = r.Uint32()
	}
	return out
}

func floats(r *rand.Rand, n int) []float32 {
	if n == 0 {
		return nil
	}
	out := make([]float32, n)
	for i := range out {
		out[i] = float(r)
	}
	return out
}

func ints(r *rand.Rand, n int) []int32 {
	if n == 0 {
		return nil
	}
	out := make([]int32, n)
	for i := range out {
		out[i] = number(r)
	}
	return out
}

func someBytes(r *rand.Rand, n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(r.Uint32())
	}
	return out
}

// kind is one of the messages: ours and protobuf's.
type kind struct {
	random func(*rand.Rand) (tensorwire.Message, proto.Message)
	ours   func() tensorwire.Message
	theirs func() proto.Message
}

func kinds() map[string]kind {
	return map[string]kind{
		"step request": {randomStepRequest, func() tensorwire.Message { return &StepRequest{Step: &engine.Step{}} },
			func() proto.Message { return &enginev1.StepRequest{} }},
		"step response": {randomStepResponse, func() tensorwire.Message {
			return &StepResponse{Result: &engine.StepResult{}}
		},
			func() proto.Message { return &enginev1.StepResponse{} }},
		"propose request": {randomProposeRequest, func() tensorwire.Message { return &ProposeRequest{} },
			func() proto.Message { return &enginev1.ProposeRequest{} }},
		"propose response": {randomProposeResponse, func() tensorwire.Message {
			return &ProposeResponse{Result: &engine.DraftResult{}}
		},
			func() proto.Message { return &enginev1.ProposeResponse{} }},
	}
}

// randomStepRequest returns the same message twice.
func randomStepRequest(r *rand.Rand) (tensorwire.Message, proto.Message) {
	s := &engine.Step{NMasks: r.IntN(3), Features: engine.FeatureEncoding(r.IntN(5)),
		Masks: words(r, r.IntN(3)*400), HiddenIn: someBytes(r, r.IntN(3)*500), Hidden: engine.HiddenEncoding(r.IntN(4)) - 1,
		RowsFrom: r.Uint64() >> r.IntN(64), RowsTo: r.Uint64() >> r.IntN(64)}
	m := &StepRequest{Request{r.Uint64()}, s, Shared{r.Uint64(), r.Uint64()}, Shared{r.Uint64(), r.Uint64()}}
	p := &enginev1.StepRequest{Id: m.ID, NMasks: int32(s.NMasks), Features: s.Features,
		SharedIn: m.SharedIn.At, SharedInBytes: m.SharedIn.Bytes, RowsFrom: s.RowsFrom, RowsTo: s.RowsTo,
		SharedOut: m.SharedOut.At, SharedOutBytes: m.SharedOut.Bytes,
		MaskWords: uint32(len(s.Masks)), HiddenBytes: uint32(len(s.HiddenIn)), Hidden: enginev1.HiddenEncoding(s.Hidden + 1)}
	for range r.IntN(3) {
		g := engine.Group{Sequence: engine.Sequence(number(r)), Rows: int(number(r)), Kind: engine.GroupKind(r.IntN(4)) - 1,
			Commit: r.IntN(2) == 0, Path: ints(r, r.IntN(5))}
		if r.IntN(2) == 0 {
			g.Kept = engine.KeptRange{Position: number(r), Rows: number(r)}
		}
		if r.IntN(2) == 0 {
			g.Trace = randomTrace(r)
		}
		s.Groups = append(s.Groups, g)
		p.Groups = append(p.Groups, &enginev1.Group{Sequence: int32(g.Sequence), Rows: int32(g.Rows),
			Kind:   enginev1.GroupKind(int32(g.Kind + 1)),
			Commit: g.Commit, Path: g.Path, KeptPosition: g.Kept.Position, KeptRows: g.Kept.Rows,
			TraceHigh: g.Trace.High, TraceLow: g.Trace.Low, TraceSpan: g.Trace.Span, TraceSampled: g.Trace.Sampled})
	}
	for range r.IntN(6) {
		w := engine.Row{Token: number(r), Position: number(r), Parent: number(r), Want: r.Uint32() >> r.IntN(32),
			TopK: number(r), Score: number(r), Mask: number(r)}
		s.Rows = append(s.Rows, w)
		p.Rows = append(p.Rows, &enginev1.Row{Token: w.Token, Position: w.Position, Parent: w.Parent,
			Want: w.Want, TopK: w.TopK, Score: w.Score, Mask: w.Mask})
	}
	p.Payload = append(append([]byte(nil), tensorwire.View(s.Masks)...), s.HiddenIn...)
	return m, p
}

func randomProposeRequest(r *rand.Rand) (tensorwire.Message, proto.Message) {
	m := &ProposeRequest{Request: Request{r.Uint64()}}
	p := &enginev1.ProposeRequest{Id: m.ID}
	for range r.IntN(7) {
		f := engine.FeatureRows{Sequence: engine.Sequence(number(r)), Position: number(r), Rows: number(r),
			Encoding: engine.FeatureEncoding(r.IntN(5)), Data: someBytes(r, r.IntN(2)*r.IntN(3000))}
		m.Features = append(m.Features, f)
		p.Features = append(p.Features, &enginev1.FeatureRows{Sequence: int32(f.Sequence), Position: f.Position, Rows: f.Rows,
			Encoding: f.Encoding, DataBytes: uint32(len(f.Data))})
		p.Payload = append(p.Payload, f.Data...)
	}
	for range r.IntN(3) {
		d := engine.DraftRequest{Sequence: engine.Sequence(number(r)), Token: number(r), Position: number(r),
			Block: number(r),
			TopK:  number(r), Temperature: float(r)}
		if r.IntN(2) == 0 {
			d.Trace = randomTrace(r)
		}
		m.Requests = append(m.Requests, d)
		p.Requests = append(p.Requests, &enginev1.DraftRequest{Sequence: int32(d.Sequence), Token: d.Token,
			Position: d.Position,
			Block:    d.Block, TopK: d.TopK, Temperature: d.Temperature,
			TraceHigh: d.Trace.High, TraceLow: d.Trace.Low, TraceSpan: d.Trace.Span, TraceSampled: d.Trace.Sampled})
	}
	return m, p
}

func randomTrace(r *rand.Rand) engine.Trace {
	return engine.Trace{High: r.Uint64(), Low: r.Uint64(), Span: r.Uint64(), Sampled: r.IntN(2) == 0}
}

// failed returns the same failure twice, or none.
func failed(r *rand.Rand) (*Failure, *enginev1.Failure) {
	if r.IntN(3) > 0 {
		return nil, nil
	}
	return &Failure{Code: 3, Message: "rows.token: ü", Reason: "INVALID_ARGUMENT", Field: "rows.token"},
		&enginev1.Failure{Code: 3, Message: "rows.token: ü", Reason: "INVALID_ARGUMENT", Field: "rows.token"}
}

func randomStepResponse(r *rand.Rand) (tensorwire.Message, proto.Message) {
	n, stride := r.IntN(4), r.IntN(4)
	s := &engine.StepResult{Tokens: ints(r, n), Logprobs: floats(r, n), Scores: floats(r, n), TopStride: stride,
		TopIDs:      ints(r, n*stride),
		TopLogprobs: floats(r, n*stride), Logits: floats(r, r.IntN(2)*700), Features: someBytes(r, r.IntN(2)*r.IntN(5000)),
		HiddenOut: someBytes(r, r.IntN(2)*300)}
	m := &StepResponse{Response{ID: r.Uint64(), Nanos: int64(number(r))}, s, r.Uint64()}
	p := &enginev1.StepResponse{Id: m.ID, EngineNanos: m.Nanos, SharedBytes: m.SharedBytes, Tokens: s.Tokens,
		Logprobs: s.Logprobs, Scores: s.Scores, TopStride: int32(stride), TopIds: s.TopIDs,
		TopLogprobs: s.TopLogprobs, FeatureBytes: uint32(len(s.Features)),
		HiddenBytes: uint32(len(s.HiddenOut)), LogitValues: uint32(len(s.Logits))}
	p.Payload = append(append(append([]byte(nil), s.Features...), s.HiddenOut...), tensorwire.View(s.Logits)...)
	m.Failure, p.Failure = failed(r)
	return m, p
}

func randomProposeResponse(r *rand.Rand) (tensorwire.Message, proto.Message) {
	d := &engine.DraftResult{Stride: r.IntN(5), Positions: r.IntN(16), IDs: ints(r, r.IntN(20)),
		Logprobs: floats(r, r.IntN(20)), AppendNanos: int64(number(r))}
	m := &ProposeResponse{Response{ID: r.Uint64(), Nanos: int64(number(r))}, d}
	p := &enginev1.ProposeResponse{Id: m.ID, EngineNanos: m.Nanos, Stride: int32(d.Stride), Positions: int32(d.Positions),
		Ids:      d.IDs,
		Logprobs: d.Logprobs, AppendNanos: d.AppendNanos}
	m.Failure, p.Failure = failed(r)
	return m, p
}

func cutAt(b []byte, at ...int) mem.BufferSlice {
	var s mem.BufferSlice
	last := 0
	for _, a := range at {
		s = append(s, mem.SliceBuffer(b[last:a]))
		last = a
	}
	return append(s, mem.SliceBuffer(b[last:]))
}

func encoded(t *testing.T, m tensorwire.Message) string {
	t.Helper()
	data, err := tensorwire.NewCodec().Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Free()
	return string(data.Materialize())
}

func TestMessagesAreProtobuf(t *testing.T) {
	c := tensorwire.NewCodec()
	r := rand.New(rand.NewPCG(1, 2))
	for name, k := range kinds() {
		t.Run(name, func(t *testing.T) {
			reused := k.ours()
			for range 1000 {
				ours, theirs := k.random(r)
				ordered := encoded(t, ours)
				back := k.theirs()
				if err := proto.Unmarshal([]byte(ordered), back); err != nil {
					t.Fatal(err)
				}
				if !proto.Equal(theirs, back) {
					t.Fatalf("protobuf reads something else:\n%s", cmp.Diff(theirs, back, protocmp.Transform()))
				}
				foreign, err := proto.Marshal(theirs)
				if err != nil {
					t.Fatal(err)
				}
				for _, wire := range [][]byte{[]byte(ordered), foreign} {
					a, b := r.IntN(len(wire)+1), r.IntN(len(wire)+1)
					if err := c.Unmarshal(cutAt(wire, min(a, b), max(a, b)), reused); err != nil {
						t.Fatal(err)
					}
					// What is written was compared with protobuf above.
					if encoded(t, reused) != ordered {
						t.Fatalf("read %+v, want %+v", reused, ours)
					}
				}
			}
		})
	}
}

func TestMessagesCutAtEveryByte(t *testing.T) {
	c := tensorwire.NewCodec()
	r := rand.New(rand.NewPCG(5, 6))
	for _, k := range kinds() {
		for range 6 {
			ours, _ := k.random(r)
			want := encoded(t, ours)
			wire, reused := []byte(want), k.ours()
			step := 1 + len(wire)/400
			for i := 0; i <= len(wire); i += step {
				if err := c.Unmarshal(cutAt(wire, i), reused); err != nil {
					t.Fatal(err)
				}
				if encoded(t, reused) != want {
					t.Fatalf("cut at %d: read %+v, want %+v", i, reused, ours)
				}
				if i < len(wire) { // a truncated message never passes for another whole one of the same payload
					_ = c.Unmarshal(cutAt(wire[:i], i/2), reused)
				}
			}
		}
	}
}

func TestStepResponseRefusesWrongSizes(t *testing.T) {
	c := tensorwire.NewCodec()
	for name, p := range map[string]*enginev1.StepResponse{
		"missing": {FeatureBytes: 4},
		"short":   {FeatureBytes: 4, Payload: []byte{1}},
		"long":    {LogitValues: 1, Payload: make([]byte, 5)},
		"huge": {FeatureBytes: math.MaxUint32, HiddenBytes: math.MaxUint32, LogitValues: math.MaxUint32,
			Payload: make([]byte, 5)},
	} {
		wire, err := proto.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Unmarshal(cutAt(wire), &StepResponse{Result: &engine.StepResult{}}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	wire := []byte(encoded(t, &StepResponse{Response: Response{ID: 1},
		Result: &engine.StepResult{Features: []byte{1, 2, 3, 4}}}))
	wire[len(wire)-5] = 3 // length of the payload
	if err := c.Unmarshal(cutAt(wire[:len(wire)-1]), &StepResponse{Result: &engine.StepResult{}}); err == nil {
		t.Error("a payload of the wrong size is accepted")
	}
}

// TestMessagesAllocateNothing: what is read goes to the memory of the message before.
func TestMessagesAllocateNothing(t *testing.T) {
	if racetest.Enabled {
		t.Skip("the race detector makes pools forget at random")
	}
	c := tensorwire.NewCodec()
	features := make([]engine.FeatureRows, 6)
	for i := range features {
		features[i] = engine.FeatureRows{Sequence: engine.Sequence(i), Rows: 2, Encoding: engine.FeatureFusedBF16,
			Data: make([]byte, 4096+i)}
	}
	step := &engine.Step{Masks: make([]uint32, 700), NMasks: 1,
		Groups: []engine.Group{{Sequence: 1, Rows: 2, Path: []int32{0, 1}}}, Rows: make([]engine.Row, 2)}
	result := &engine.StepResult{Tokens: make([]int32, 23), Features: make([]byte, 92160), Logits: make([]float32, 1000)}
	for name, m := range map[string]struct{ write, read tensorwire.Message }{
		"step":    {&StepRequest{Request: Request{1}, Step: step}, &StepRequest{Step: &engine.Step{}}},
		"propose": {&ProposeRequest{Request{1}, features, make([]engine.DraftRequest, 6)}, &ProposeRequest{}},
		"result":  {&StepResponse{Response: Response{ID: 1}, Result: result}, &StepResponse{Result: &engine.StepResult{}}},
		"draft": {&ProposeResponse{Response{ID: 1}, &engine.DraftResult{IDs: make([]int32, 90),
			Logprobs: make([]float32, 90)}},
			&ProposeResponse{Result: &engine.DraftResult{}}},
	} {
		write := func() {
			data, err := c.Marshal(m.write)
			if err != nil {
				t.Fatal(err)
			}
			data.Free()
		}
		data, err := c.Marshal(m.write)
		if err != nil {
			t.Fatal(err)
		}
		wire := data.Materialize()
		data.Free()
		in := cutAt(wire, len(wire)/2)
		read := func() {
			if err := c.Unmarshal(in, m.read); err != nil {
				t.Fatal(err)
			}
		}
		for what, f := range map[string]func(){"write": write, "read": read} {
			if n := testing.AllocsPerRun(200, f); n >= 1 { // pools may be emptied by a collection now and then
				t.Errorf("%s %s: %v allocations", what, name, n)
			}
		}
	}
}

// TestRequestsRefuse: an error names message and field, and what a request announces costs no more memory than it has
// bytes.
func TestRequestsRefuse(t *testing.T) {
	greedy := &enginev1.ProposeRequest{}
	for range 5000 {
		greedy.Features = append(greedy.Features, &enginev1.FeatureRows{DataBytes: 20000})
	}
	row, err := proto.Marshal(&enginev1.StepRequest{Rows: []*enginev1.Row{{Token: 5}}})
	if err != nil {
		t.Fatal(err)
	}
	row[len(row)-2] = 2<<3 | tensorwire.Fixed32 // token
	for name, c := range map[string]struct {
		message proto.Message
		wire    []byte
		into    tensorwire.Message
		want    string
	}{
		"part without payload": {&enginev1.StepRequest{Id: 1 << 40, MaskWords: 1}, nil, nil,
			"tandem.engine.v1.StepRequest.payload: it has 0 bytes, its parts have 4"},
		"payload without parts": {&enginev1.StepRequest{Payload: make([]byte, 3)}, nil, nil,
			"tandem.engine.v1.StepRequest.payload: it has 3 bytes, its parts have 0"},
		"short payload": {&enginev1.StepRequest{HiddenBytes: 8, Payload: make([]byte, 7)}, nil, nil,
			"tandem.engine.v1.StepRequest.payload: it has 7 bytes, its parts have 8"},
		"huge part": {&enginev1.StepRequest{HiddenBytes: math.MaxUint32}, nil, nil,
			"tandem.engine.v1.StepRequest.hidden_bytes: the parts of the payload are larger than the message"},
		"many parts": {greedy, nil, &ProposeRequest{},
			"tandem.engine.v1.FeatureRows.data_bytes: the parts of the payload are larger than the message"},
		"wire type": {nil, row, nil, "tandem.engine.v1.Row.token: the field has another wire type"},
	} {
		t.Run(name, func(t *testing.T) {
			wire, into := c.wire, c.into
			if c.message != nil {
				if wire, err = proto.Marshal(c.message); err != nil {
					t.Fatal(err)
				}
			}
			if into == nil {
				into = &StepRequest{Step: &engine.Step{}}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := tensorwire.NewCodec().Unmarshal(cutAt(wire, len(wire)/2), into)
			runtime.ReadMemStats(&after)
			if err == nil || err.Error() != "tensorwire: "+c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if spent := after.TotalAlloc - before.TotalAlloc; spent > 1<<20 {
				t.Errorf("%d bytes of a request cost %d", len(wire), spent)
			}
		})
	}
}

func FuzzMessages(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, k := range kinds() {
		for range 20 {
			_, p := k.random(r)
			wire, err := proto.Marshal(p)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(wire)
		}
	}
	c := tensorwire.NewCodec()
	f.Fuzz(func(t *testing.T, wire []byte) {
		cut := cutAt(wire, len(wire)/2)
		for name, k := range kinds() {
			ours, theirs, back := k.ours(), k.theirs(), k.theirs()
			refused := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(wire, theirs)
			if c.Unmarshal(cut, ours) != nil {
				continue
			}
			if refused != nil {
				t.Fatalf("%s: we accept what protobuf refuses: %v", name, refused)
			}
			if err := proto.Unmarshal([]byte(encoded(t, ours)), back); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(theirs, back) {
				t.Fatalf("%s: we read something else than protobuf:\n%s", name, cmp.Diff(theirs, back, protocmp.Transform()))
			}
		}
	})
}
