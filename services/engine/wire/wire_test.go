package wire

import (
	"math"
	"math/rand/v2"
	"reflect"
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

// randomRequest returns the same request as our struct and as the generated message.
func randomRequest(r *rand.Rand) (*RunRequest, *enginev1.RunRequest) {
	m, p := &RunRequest{ID: r.Uint64()}, &enginev1.RunRequest{}
	p.Id = m.ID
	if r.IntN(2) == 0 {
		m.Kind = WorkStep
		s := &engine.Step{NMasks: r.IntN(3), Features: engine.FeatureEncoding(r.IntN(5)),
			Masks: words(r, r.IntN(3)*400), HiddenIn: floats(r, r.IntN(3)*500)}
		ps := &enginev1.Step{NMasks: int32(s.NMasks), Features: s.Features,
			MaskWords: uint32(len(s.Masks)), HiddenValues: uint32(len(s.HiddenIn))}
		for range r.IntN(3) {
			g := engine.Group{Sequence: engine.Sequence(number(r)), Rows: int(number(r)), Kind: engine.GroupKind(r.IntN(4)) - 1, Commit: r.IntN(2) == 0, Path: ints(r, r.IntN(5))}
			if r.IntN(2) == 0 {
				g.Kept = engine.KeptRange{Position: number(r), Rows: number(r)}
			}
			s.Groups = append(s.Groups, g)
			ps.Groups = append(ps.Groups, &enginev1.Group{Sequence: int32(g.Sequence), Rows: int32(g.Rows), Kind: enginev1.GroupKind(int32(g.Kind + 1)),
				Commit: g.Commit, Path: g.Path, KeptPosition: g.Kept.Position, KeptRows: g.Kept.Rows})
		}
		for range r.IntN(6) {
			w := engine.Row{Token: number(r), Position: number(r), Parent: number(r), Want: r.Uint32() >> r.IntN(32),
				TopK: number(r), Score: number(r), Mask: number(r)}
			s.Rows = append(s.Rows, w)
			ps.Rows = append(ps.Rows, &enginev1.Row{Token: w.Token, Position: w.Position, Parent: w.Parent,
				Want: w.Want, TopK: w.TopK, Score: w.Score, Mask: w.Mask})
		}
		p.Payload = append(append([]byte(nil), tensorwire.View(s.Masks)...), tensorwire.View(s.HiddenIn)...)
		m.Step, p.Work = s, &enginev1.RunRequest_Step{Step: ps}
		return m, p
	}
	m.Kind, m.Propose = WorkPropose, &Proposal{}
	pp := &enginev1.Propose{}
	for range r.IntN(7) {
		f := engine.FeatureRows{Sequence: engine.Sequence(number(r)), Position: number(r), Rows: number(r),
			Encoding: engine.FeatureEncoding(r.IntN(5)), Data: someBytes(r, r.IntN(2)*r.IntN(3000))}
		m.Propose.Features = append(m.Propose.Features, f)
		pp.Features = append(pp.Features, &enginev1.FeatureRows{Sequence: int32(f.Sequence), Position: f.Position, Rows: f.Rows,
			Encoding: f.Encoding, DataBytes: uint32(len(f.Data))})
		p.Payload = append(p.Payload, f.Data...)
	}
	for range r.IntN(3) {
		d := engine.DraftRequest{Sequence: engine.Sequence(number(r)), Token: number(r), Position: number(r), Block: number(r),
			TopK: number(r), Temperature: float(r)}
		m.Propose.Requests = append(m.Propose.Requests, d)
		pp.Requests = append(pp.Requests, &enginev1.DraftRequest{Sequence: int32(d.Sequence), Token: d.Token, Position: d.Position,
			Block: d.Block, TopK: d.TopK, Temperature: d.Temperature})
	}
	p.Work = &enginev1.RunRequest_Propose{Propose: pp}
	return m, p
}

func randomResponse(r *rand.Rand) (*RunResponse, *enginev1.RunResponse) {
	m := &RunResponse{ID: r.Uint64(), Nanos: int64(number(r))}
	p := &enginev1.RunResponse{Id: m.ID, EngineNanos: m.Nanos}
	switch r.IntN(3) {
	case 0:
		m.Failure = &Failure{Code: 3, Message: "rows.token: ü", Reason: "INVALID_ARGUMENT", Field: "rows.token"}
		p.Failure = &enginev1.Failure{Code: 3, Message: "rows.token: ü", Reason: "INVALID_ARGUMENT", Field: "rows.token"}
	case 1:
		n, stride := r.IntN(4), r.IntN(4)
		s := &engine.StepResult{Tokens: ints(r, n), Logprobs: floats(r, n), Scores: floats(r, n), TopStride: stride, TopIDs: ints(r, n*stride),
			TopLogprobs: floats(r, n*stride), Logits: floats(r, r.IntN(2)*700), Features: someBytes(r, r.IntN(2)*r.IntN(5000)), HiddenOut: floats(r, r.IntN(2)*300)}
		m.Kind, m.Step = OutputStep, s
		p.Output = &enginev1.RunResponse_Step{Step: &enginev1.StepOutput{Tokens: s.Tokens, Logprobs: s.Logprobs, Scores: s.Scores,
			TopStride: int32(stride), TopIds: s.TopIDs, TopLogprobs: s.TopLogprobs, FeatureBytes: uint32(len(s.Features)),
			HiddenValues: uint32(len(s.HiddenOut)), LogitValues: uint32(len(s.Logits))}}
		p.Payload = append(append(append([]byte(nil), s.Features...), tensorwire.View(s.HiddenOut)...), tensorwire.View(s.Logits)...)
	default:
		d := &engine.DraftResult{Stride: r.IntN(5), Positions: r.IntN(16), IDs: ints(r, r.IntN(20)), Logprobs: floats(r, r.IntN(20)), AppendNanos: int64(number(r))}
		m.Kind, m.Propose = OutputPropose, d
		p.Output = &enginev1.RunResponse_Propose{Propose: &enginev1.ProposeOutput{Stride: int32(d.Stride), Positions: int32(d.Positions), Ids: d.IDs, Logprobs: d.Logprobs, AppendNanos: d.AppendNanos}}
	}
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

// sameRequest compares what the server works with, by writing it again: what is written is compared with protobuf above.
func sameRequest(t *testing.T, want, got *RunRequest) {
	t.Helper()
	if a, b := encoded(want), encoded(got); a != b {
		t.Fatalf("read %+v, want %+v", got, want)
	}
}

func encoded(m *RunRequest) string {
	data, err := tensorwire.NewCodec().Marshal(m)
	if err != nil {
		panic(err)
	}
	defer data.Free()
	return string(data.Materialize())
}

func TestRunRequestIsProtobuf(t *testing.T) {
	c := tensorwire.NewCodec()
	r := rand.New(rand.NewPCG(1, 2))
	reused := &RunRequest{}
	for range 1000 {
		ours, theirs := randomRequest(r)
		data, err := c.Marshal(ours)
		if err != nil {
			t.Fatal(err)
		}
		back := &enginev1.RunRequest{}
		if err := proto.Unmarshal(data.Materialize(), back); err != nil {
			t.Fatal(err)
		}
		data.Free()
		if !proto.Equal(theirs, back) {
			t.Fatalf("protobuf reads something else:\n%s", cmp.Diff(theirs, back, protocmp.Transform()))
		}
		wire, err := proto.Marshal(theirs)
		if err != nil {
			t.Fatal(err)
		}
		a, b := r.IntN(len(wire)+1), r.IntN(len(wire)+1)
		if err := c.Unmarshal(cutAt(wire, min(a, b), max(a, b)), reused); err != nil {
			t.Fatal(err)
		}
		sameRequest(t, ours, reused)
	}
}

func TestRunResponseIsProtobuf(t *testing.T) {
	c := tensorwire.NewCodec()
	r := rand.New(rand.NewPCG(3, 4))
	reused := &RunResponse{}
	step, draft := &engine.StepResult{}, &engine.DraftResult{}
	for range 1000 {
		ours, theirs := randomResponse(r)
		data, err := c.Marshal(ours)
		if err != nil {
			t.Fatal(err)
		}
		ordered := data.Materialize()
		data.Free()
		back := &enginev1.RunResponse{}
		if err := proto.Unmarshal(ordered, back); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(theirs, back) {
			t.Fatalf("protobuf reads something else:\n%s", cmp.Diff(theirs, back, protocmp.Transform()))
		}
		foreign, err := proto.Marshal(theirs) // Go's protobuf writes the oneof after the payload
		if err != nil {
			t.Fatal(err)
		}
		for _, wire := range [][]byte{ordered, foreign} {
			reused.Step, reused.Propose = step, draft
			a, b := r.IntN(len(wire)+1), r.IntN(len(wire)+1)
			if err := c.Unmarshal(cutAt(wire, min(a, b), max(a, b)), reused); err != nil {
				t.Fatal(err)
			}
			if reused.ID != ours.ID || reused.Nanos != ours.Nanos || reused.Kind != ours.Kind || !reflect.DeepEqual(reused.Failure, ours.Failure) {
				t.Fatalf("got %+v, want %+v", reused, ours)
			}
			again, err := c.Marshal(&RunResponse{ID: reused.ID, Nanos: reused.Nanos, Kind: reused.Kind, Failure: reused.Failure, Step: step, Propose: draft})
			if err != nil {
				t.Fatal(err)
			}
			if string(again.Materialize()) != string(ordered) {
				t.Fatal("what was read is not what was written")
			}
			again.Free()
		}
	}
}

func TestRunMessagesCutAtEveryByte(t *testing.T) {
	c := tensorwire.NewCodec()
	r := rand.New(rand.NewPCG(5, 6))
	for range 12 {
		ours, _ := randomRequest(r)
		data, err := c.Marshal(ours)
		if err != nil {
			t.Fatal(err)
		}
		wire := data.Materialize()
		data.Free()
		reused := &RunRequest{}
		step := 1 + len(wire)/400
		for i := 0; i <= len(wire); i += step {
			if err := c.Unmarshal(cutAt(wire, i), reused); err != nil {
				t.Fatal(err)
			}
			sameRequest(t, ours, reused)
			if i < len(wire) { // a truncated message never passes for another whole one of the same payload
				_ = c.Unmarshal(cutAt(wire[:i], i/2), reused)
			}
		}
	}
}

func TestRunResponseRefusesWrongSizes(t *testing.T) {
	c := tensorwire.NewCodec()
	for name, p := range map[string]*enginev1.RunResponse{
		"missing": {Output: &enginev1.RunResponse_Step{Step: &enginev1.StepOutput{FeatureBytes: 4}}},
		"short":   {Output: &enginev1.RunResponse_Step{Step: &enginev1.StepOutput{FeatureBytes: 4}}, Payload: []byte{1}},
		"long":    {Output: &enginev1.RunResponse_Step{Step: &enginev1.StepOutput{LogitValues: 1}}, Payload: make([]byte, 5)},
		"huge": {Output: &enginev1.RunResponse_Step{Step: &enginev1.StepOutput{
			FeatureBytes: math.MaxUint32, HiddenValues: math.MaxUint32, LogitValues: math.MaxUint32}}, Payload: make([]byte, 5)},
	} {
		wire, err := proto.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		m := &RunResponse{Step: &engine.StepResult{}}
		if err := c.Unmarshal(cutAt(wire), m); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	// The same in the order that our own server writes: the failure stays in the answer.
	s := &engine.StepResult{Features: []byte{1, 2, 3, 4}}
	data, err := c.Marshal(&RunResponse{ID: 1, Kind: OutputStep, Step: s})
	if err != nil {
		t.Fatal(err)
	}
	wire := data.Materialize()
	data.Free()
	wire[len(wire)-5] = 3 // length of the payload
	m := &RunResponse{Step: &engine.StepResult{}}
	if err := c.Unmarshal(cutAt(wire[:len(wire)-1]), m); err == nil && m.Failure.Err() == nil {
		t.Error("a payload of the wrong size is accepted")
	}
}

// TestRunMessagesAllocateNothing: what is read goes to the memory of the message before.
func TestRunMessagesAllocateNothing(t *testing.T) {
	if racetest.Enabled {
		t.Skip("the race detector makes pools forget at random")
	}
	c := tensorwire.NewCodec()
	features := make([]engine.FeatureRows, 6)
	for i := range features {
		features[i] = engine.FeatureRows{Sequence: engine.Sequence(i), Rows: 2, Encoding: engine.FeatureFusedBF16, Data: make([]byte, 4096+i)}
	}
	step := &engine.Step{Masks: make([]uint32, 700), NMasks: 1, Groups: []engine.Group{{Sequence: 1, Rows: 2, Path: []int32{0, 1}}}, Rows: make([]engine.Row, 2)}
	result := &engine.StepResult{Tokens: make([]int32, 23), Features: make([]byte, 92160), Logits: make([]float32, 1000)}
	for name, m := range map[string]struct{ write, read tensorwire.Message }{
		"step":    {&RunRequest{ID: 1, Kind: WorkStep, Step: step}, &RunRequest{}},
		"propose": {&RunRequest{ID: 1, Kind: WorkPropose, Propose: &Proposal{features, make([]engine.DraftRequest, 6)}}, &RunRequest{}},
		"result":  {&RunResponse{ID: 1, Kind: OutputStep, Step: result}, &RunResponse{Step: &engine.StepResult{}}},
		"draft":   {&RunResponse{ID: 1, Kind: OutputPropose, Propose: &engine.DraftResult{IDs: make([]int32, 90), Logprobs: make([]float32, 90)}}, &RunResponse{}},
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

// TestRunRequestRefuses: an error names message and field, and what a request announces costs no more memory than it has bytes.
func TestRunRequestRefuses(t *testing.T) {
	greedy := &enginev1.Propose{}
	for range 5000 {
		greedy.Features = append(greedy.Features, &enginev1.FeatureRows{DataBytes: 20000})
	}
	row, err := proto.Marshal(&enginev1.RunRequest{Work: &enginev1.RunRequest_Step{Step: &enginev1.Step{Rows: []*enginev1.Row{{Token: 5}}}}})
	if err != nil {
		t.Fatal(err)
	}
	row[len(row)-2] = 2<<3 | tensorwire.Fixed32 // token
	for name, c := range map[string]struct {
		message proto.Message
		wire    []byte
		want    string
	}{
		"part without payload": {&enginev1.RunRequest{Work: &enginev1.RunRequest_Step{Step: &enginev1.Step{MaskWords: 1}}}, nil,
			"tandem.engine.v1.RunRequest.payload: it has 0 bytes, its parts have 4"},
		"payload without parts": {&enginev1.RunRequest{Payload: make([]byte, 3)}, nil,
			"tandem.engine.v1.RunRequest.payload: it has 3 bytes, its parts have 0"},
		"short payload": {&enginev1.RunRequest{Work: &enginev1.RunRequest_Step{Step: &enginev1.Step{HiddenValues: 2}}, Payload: make([]byte, 7)}, nil,
			"tandem.engine.v1.RunRequest.payload: it has 7 bytes, its parts have 8"},
		"huge part": {&enginev1.RunRequest{Work: &enginev1.RunRequest_Step{Step: &enginev1.Step{HiddenValues: math.MaxUint32}}}, nil,
			"tandem.engine.v1.Step.hidden_values: the parts of the payload are larger than the message"},
		"many parts": {&enginev1.RunRequest{Work: &enginev1.RunRequest_Propose{Propose: greedy}}, nil,
			"tandem.engine.v1.FeatureRows.data_bytes: the parts of the payload are larger than the message"},
		"wire type": {nil, row, "tandem.engine.v1.Row.token: the field has another wire type"},
	} {
		t.Run(name, func(t *testing.T) {
			wire := c.wire
			if c.message != nil {
				if wire, err = proto.Marshal(c.message); err != nil {
					t.Fatal(err)
				}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := tensorwire.NewCodec().Unmarshal(cutAt(wire, len(wire)/2), &RunRequest{})
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

func FuzzRunMessages(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 20 {
		_, p := randomRequest(r)
		wire, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
		_, q := randomResponse(r)
		if wire, err = proto.Marshal(q); err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	c := tensorwire.NewCodec()
	f.Fuzz(func(t *testing.T, wire []byte) {
		cut := cutAt(wire, len(wire)/2)
		for _, m := range []struct {
			ours         tensorwire.Message
			theirs, back proto.Message
		}{
			{&RunRequest{}, &enginev1.RunRequest{}, &enginev1.RunRequest{}},
			{&RunResponse{Step: &engine.StepResult{}, Propose: &engine.DraftResult{}}, &enginev1.RunResponse{}, &enginev1.RunResponse{}},
		} {
			theirs := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(wire, m.theirs)
			if c.Unmarshal(cut, m.ours) != nil {
				continue
			}
			if theirs != nil {
				t.Fatalf("%T: we accept what protobuf refuses: %v", m.ours, theirs)
			}
			data, err := c.Marshal(m.ours)
			if err != nil {
				t.Fatal(err)
			}
			if err := proto.Unmarshal(data.Materialize(), m.back); err != nil {
				t.Fatal(err)
			}
			data.Free()
			if !proto.Equal(m.theirs, m.back) {
				t.Fatalf("%T: we read something else than protobuf:\n%s", m.ours, cmp.Diff(m.theirs, m.back, protocmp.Transform()))
			}
		}
	})
}
