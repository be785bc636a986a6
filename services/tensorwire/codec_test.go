package tensorwire

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/racetest"
)

// hot lists a constructor per message that the codec encodes by itself.
var hot = map[string]func(*rand.Rand) proto.Message{
	"SpeculateRequest": func(r *rand.Rand) proto.Message {
		m := &tandemv1.SpeculateRequest{
			SessionId: text(r), Epoch: word(r), Step: word(r), FeaturePosition: int32(word(r)), FeatureRows: int32(word(r)),
			FeatureEncoding: tandemv1.FeatureEncoding(r.IntN(3)), Features: payload(r),
		}
		if r.IntN(2) == 0 {
			m.Propose = &tandemv1.Propose{
				Anchor: int32(word(r)), Position: int32(word(r)), Budget: int32(word(r)), Block: int32(word(r)),
				Mode: tandemv1.SpeculationMode(r.IntN(5)), DeadlineUs: int32(word(r)),
			}
		}
		return m
	},
	"SpeculateResponse": func(r *rand.Rand) proto.Message {
		m := &tandemv1.SpeculateResponse{
			Epoch: word(r), Step: word(r), Length: int32(word(r)), AppendUs: int32(word(r)), ForwardUs: int32(word(r)),
			BuildUs: int32(word(r)),
		}
		for range r.IntN(30) {
			m.Tokens = append(m.Tokens, int32(word(r)))
			m.Parents = append(m.Parents, int32(word(r)))
			m.Logprobs = append(m.Logprobs, float32(r.NormFloat64()))
		}
		return m
	},
	"PutTablesRequest": func(r *rand.Rand) proto.Message {
		return &tandemv1.PutTablesRequest{Digest: text(r), TotalBytes: int64(word(r)), Chunk: payload(r)}
	},
	"PutFuseRequest": func(r *rand.Rand) proto.Message {
		return &tandemv1.PutFuseRequest{Digest: text(r), TotalBytes: int64(word(r)), Chunk: payload(r)}
	},
	"GetFuseResponse": func(r *rand.Rand) proto.Message {
		return &tandemv1.GetFuseResponse{Digest: text(r), TotalBytes: int64(word(r)), Chunk: payload(r)}
	},
	"FuseRequest": func(r *rand.Rand) proto.Message {
		return &enginev1.FuseRequest{
			Rows: int32(word(r)), Kind: enginev1.GroupKind(r.IntN(3)), RawEncoding: 1, FusedEncoding: 2, Raw: payload(r),
		}
	},
	"FuseResponse": func(r *rand.Rand) proto.Message { return &enginev1.FuseResponse{Fused: payload(r)} },
	"ExportSequenceResponse": func(r *rand.Rand) proto.Message {
		return &enginev1.ExportSequenceResponse{TotalBytes: word(r), Chunk: payload(r)}
	},
	"ReadSnapshotResponse": func(r *rand.Rand) proto.Message {
		return &enginev1.ReadSnapshotResponse{Crc: uint32(word(r)), Data: payload(r)}
	},
	"WriteSnapshotRequest": func(r *rand.Rand) proto.Message {
		return &enginev1.WriteSnapshotRequest{
			Snapshot: int32(word(r)), Page: int32(word(r)), OffsetBytes: word(r), Crc: uint32(word(r)), Data: payload(r),
		}
	},
	"ImportSequenceRequest": func(r *rand.Rand) proto.Message {
		return &enginev1.ImportSequenceRequest{Sequence: int32(word(r)), TotalBytes: word(r), Chunk: payload(r)}
	},
	"ScoreRequest, by the ordinary codec": func(r *rand.Rand) proto.Message {
		return &enginev1.ScoreRequest{Prompts: []*enginev1.Prompt{{Ids: []int32{1, -2, int32(word(r))}}}, Rotated: true}
	},
}

// word favours borders.
func word(r *rand.Rand) uint64 {
	switch r.IntN(5) {
	case 0:
		return 0
	case 1:
		return uint64(r.IntN(300))
	case 2:
		return math.MaxUint64 - uint64(r.IntN(3))
	default:
		return r.Uint64() >> r.IntN(64)
	}
}

func text(r *rand.Rand) string { return []string{"", "s", "session-ü", "0123456789abcdef"}[r.IntN(4)] }

func payload(r *rand.Rand) []byte {
	b := make([]byte, []int{0, 1, 127, 128, 1024, 1025, 5000}[r.IntN(7)])
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// cut splits bytes into buffers at the given places.
func cut(b []byte, at ...int) mem.BufferSlice {
	var s mem.BufferSlice
	last := 0
	for _, a := range at {
		s = append(s, mem.SliceBuffer(b[last:a]))
		last = a
	}
	return append(s, mem.SliceBuffer(b[last:]))
}

func TestSameAsProtobuf(t *testing.T) {
	c := NewCodec()
	for name, make := range hot {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			reused := proto.Clone(make(r)) // as a receiver does, with whatever was in it before
			for range 300 {
				m := make(r)
				data, err := c.Marshal(m)
				if err != nil {
					t.Fatal(err)
				}
				wire := data.Materialize()
				data.Free()
				back := m.ProtoReflect().New().Interface()
				if err := proto.Unmarshal(wire, back); err != nil {
					t.Fatal(err)
				}
				if !proto.Equal(m, back) {
					t.Fatalf("protobuf reads something else:\n%s", cmp.Diff(m, back, protocmp.Transform()))
				}
				if wire, err = proto.Marshal(m); err != nil {
					t.Fatal(err)
				}
				a, b := r.IntN(len(wire)+1), r.IntN(len(wire)+1)
				if err := c.Unmarshal(cut(wire, min(a, b), max(a, b)), reused); err != nil {
					t.Fatal(err)
				}
				if !proto.Equal(m, reused) {
					t.Fatalf("we read something else than protobuf:\n%s", cmp.Diff(m, reused, protocmp.Transform()))
				}
			}
		})
	}
}

func TestCutAtEveryByte(t *testing.T) {
	c := NewCodec()
	m := &tandemv1.SpeculateRequest{
		SessionId: "session", Epoch: math.MaxUint64, Step: 300, FeaturePosition: -1, FeatureRows: 2, FeatureEncoding: 2,
		Propose: &tandemv1.Propose{Anchor: -5, Position: 1 << 30, Block: 16}, Features: bytes.Repeat([]byte{1, 2, 3}, 400),
	}
	wire, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	reused := &tandemv1.SpeculateRequest{}
	for i := range len(wire) + 1 {
		if err := c.Unmarshal(cut(wire, i), reused); err != nil {
			t.Fatalf("cut at %d: %v", i, err)
		}
		if !proto.Equal(m, reused) {
			t.Fatalf("cut at %d: differs", i)
		}
		// A truncated message is an error exactly where protobuf says so.
		short := wire[:i]
		got, want := c.Unmarshal(cut(short, i/2), reused), proto.Unmarshal(short, &tandemv1.SpeculateRequest{})
		if (got == nil) != (want == nil) {
			t.Fatalf("truncated to %d: got %v, protobuf %v", i, got, want)
		}
	}
	one := make(mem.BufferSlice, 0, 2*len(wire))
	for i := range wire {
		one = append(one, mem.SliceBuffer(wire[i:i+1]), mem.SliceBuffer(nil))
	}
	if err := c.Unmarshal(one, reused); err != nil || !proto.Equal(m, reused) {
		t.Fatalf("one byte a buffer: %v", err)
	}
}

func TestPayloadByReference(t *testing.T) {
	c := NewCodec()
	m := &tandemv1.SpeculateRequest{Epoch: 1, Features: make([]byte, 92160)}
	released := 0
	lent := &Lent{Message: m, Released: func() { released++ }}
	data, err := c.Marshal(lent)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) != 2 || &data[1].ReadOnlyData()[0] != &m.Features[0] {
		t.Fatal("the payload was copied")
	}
	// As gRPC does: the transport holds a second reference and frees it later.
	data.Ref()
	data.Free()
	if released != 0 {
		t.Fatal("released while the transport holds it")
	}
	data.Free()
	if released != 1 {
		t.Fatalf("released %d times", released)
	}
	// Copied messages are released at once.
	for _, small := range []any{&tandemv1.SpeculateRequest{Features: []byte{1}}, &enginev1.ScoreRequest{}} {
		released = 0
		lent.Message = small
		if data, err = c.Marshal(lent); err != nil {
			t.Fatal(err)
		}
		data.Free()
		if released != 1 {
			t.Fatalf("%T released %d times", small, released)
		}
	}
	if _, err := c.Marshal("text"); err == nil {
		t.Fatal("a string is not a message")
	}
}

// parts is a Message of several payload slices.
type parts struct{ p [4][]byte }

func (m *parts) Append(b []byte, p *Parts) []byte {
	for _, s := range m.p {
		p.Add(s)
	}
	return AppendLength(b, 15, p.Len())
}
func (m *parts) ReadFrom(*Reader) error { return nil }

func TestPartsFollowEachOther(t *testing.T) {
	c := NewCodec()
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		m := &parts{}
		var all []byte
		for i := range m.p {
			m.p[i] = payload(r)
			all = append(all, m.p[i]...)
		}
		released := 0
		data, err := c.Marshal(&Lent{m, func() { released++ }})
		if err != nil {
			t.Fatal(err)
		}
		got := &tandemv1.Tensor{}
		wire := data.Materialize()
		data.Free()
		if err := proto.Unmarshal(wire, got); err != nil || !bytes.Equal(got.Data, all) || released != 1 {
			t.Fatal(err, len(got.Data), len(all), released)
		}
	}
}

func TestRefusesDamage(t *testing.T) {
	for name, wire := range map[string][]byte{
		"field zero":      {0x00, 0x01},
		"endless varint":  bytes.Repeat([]byte{0xff}, 11),
		"too long bytes":  {0x7a, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"end of no group": {0x7c},
		"open group":      {0x7b, 0x08, 0x01},
		"wrong text":      {0x0a, 0x01, 0xff},
		"wire type 6":     {0x7e},
	} {
		if err := NewCodec().Unmarshal(cut(wire, 1), &tandemv1.SpeculateRequest{}); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if err := proto.Unmarshal(wire, &tandemv1.SpeculateRequest{}); err == nil {
			t.Errorf("%s: protobuf accepts it", name)
		}
	}
}

// TestErrorsNameTheField: what is wrong, and where.
func TestErrorsNameTheField(t *testing.T) {
	for name, c := range map[string]struct {
		wire []byte
		want string
	}{
		"wire type":          {[]byte{0x12, 0x01, 0x00}, "tandem.v1.SpeculateRequest.epoch: the field has another wire type"},
		"nested wire type":   {[]byte{0x3a, 0x02, 0x0a, 0x00}, "tandem.v1.Propose.anchor: the field has another wire type"},
		"cut varint":         {[]byte{0x08 | 0x10, 0xff}, "tandem.v1.SpeculateRequest.step: the message ends too early"},
		"cut payload":        {[]byte{0x7a, 0x05, 0x01}, "tandem.v1.SpeculateRequest.features: the message ends too early"},
		"nested is too long": {[]byte{0x3a, 0x05, 0x08}, "tandem.v1.SpeculateRequest.propose: the message ends too early"},
		"cut in nested":      {[]byte{0x3a, 0x02, 0x08, 0x80}, "tandem.v1.Propose.anchor: the message ends too early"},
		"after nested": {[]byte{0x3a, 0x02, 0x08, 0x01, 0x10, 0x80},
			"tandem.v1.SpeculateRequest.epoch: the message ends too early"},
		"text":          {[]byte{0x0a, 0x01, 0xff}, "tandem.v1.SpeculateRequest.session_id: the string is not UTF-8"},
		"unknown field": {[]byte{0xa2, 0x06, 0x09}, "tandem.v1.SpeculateRequest, field 100: the message ends too early"},
		"tag":           {[]byte{0x10, 0x01, 0x80}, "tandem.v1.SpeculateRequest: the message ends too early"},
		"number 0":      {[]byte{0x10, 0x01, 0x02}, "tandem.v1.SpeculateRequest: a tag is invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			err := NewCodec().Unmarshal(cut(c.wire, 1), &tandemv1.SpeculateRequest{})
			if err == nil || err.Error() != "tensorwire: "+c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	if racetest.Enabled {
		t.Skip("the race detector makes pools forget at random")
	}
	c := NewCodec()
	req := &tandemv1.SpeculateRequest{
		SessionId: "a session", Epoch: 3, Step: 1 << 20, FeatureRows: 9, Propose: &tandemv1.Propose{Anchor: 7, Block: 16},
		Features: make([]byte, 92160),
	}
	resp := &tandemv1.SpeculateResponse{Epoch: 3, Step: 9, Tokens: make([]int32, 22), Parents: make([]int32, 22),
		Logprobs: make([]float32, 22)}
	for name, m := range map[string]proto.Message{"SpeculateRequest": req, "SpeculateResponse": resp} {
		wire, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		in := cut(wire, len(wire)/2)
		lent := &Lent{Message: m, Released: func() {}}
		into := m.ProtoReflect().New().Interface()
		write := func() {
			data, err := c.Marshal(lent)
			if err != nil {
				t.Fatal(err)
			}
			data.Free()
		}
		read := func() {
			if err := c.Unmarshal(in, into); err != nil {
				t.Fatal(err)
			}
		}
		for what, f := range map[string]func(){"write": write, "read": read} {
			if n := testing.AllocsPerRun(200, f); n >= 1 { // pools may be emptied by a collection now and then
				t.Errorf("%s %s: %v allocations", name, what, n)
			}
		}
	}
}

// keepsUnknown reports whether a message or one that it nests has unknown fields.
func keepsUnknown(m protoreflect.Message) bool {
	found := len(m.GetUnknown()) > 0
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		found = found || f.Message() != nil && !f.IsList() && keepsUnknown(v.Message())
		return !found
	})
	return found
}

func FuzzRead(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, make := range hot {
		wire, err := proto.Marshal(make(r))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire, uint16(3))
	}
	c := NewCodec()
	f.Fuzz(func(t *testing.T, wire []byte, at uint16) {
		for _, m := range []proto.Message{&tandemv1.SpeculateRequest{}, &tandemv1.SpeculateResponse{},
			&tandemv1.PutTablesRequest{}, &enginev1.ImportSequenceRequest{}} {
			want := m.ProtoReflect().New().Interface()
			theirs := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(wire, want)
			ours := c.Unmarshal(cut(wire, min(int(at), len(wire))), m)
			if errors.Is(ours, errWire) && theirs == nil {
				// Protobuf takes a known field of another wire type for an unknown one.
				if proto.Unmarshal(wire, want) != nil || !keepsUnknown(want.ProtoReflect()) {
					t.Fatalf("%T: we say %v, protobuf knows every field", m, ours)
				}
				continue
			}
			if (ours == nil) != (theirs == nil) {
				t.Fatalf("%T: we say %v, protobuf %v", m, ours, theirs)
			}
			if ours == nil && !proto.Equal(want, m) { // unlike cmp, NaN equals NaN
				t.Fatalf("%T differs", m)
			}
		}
	})
}
