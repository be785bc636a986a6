package engineplugin

import (
	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/rpcerr"
	tw "github.com/tandem-inference/tandem/services/tensorwire"
)

// Kinds of output: the numbers of the oneof's fields in RunResponse.
const (
	outputStep    = 4
	outputPropose = 5
)

// runResponse is enginev1.RunResponse without its cost: results are written from and read into the caller's slices.
type runResponse struct {
	id      uint64
	failure failure
	nanos   int64
	kind    int // 0 with a failure
	step    *StepResult
	propose *DraftResult

	// Reading only.
	sized                        bool // sizes of the payload are known
	featureBytes, hidden, logits int
	early                        []byte // a payload that came before its sizes, as other implementations may send it
	payloadSeen                  bool
	direct                       bool       // the payload was read straight into its slices
	strayStep                    StepResult // where outputs go that nobody asked for
	strayPropose                 DraftResult
}

// AppendHeader implements tensorwire.Message.
func (m *runResponse) AppendHeader(b []byte) []byte {
	b = tw.AppendUint(b, 1, m.id)
	if f := &m.failure; f.code != codes.OK {
		mark := len(b)
		b = tw.AppendInt(b, 1, int32(f.code))
		b = tw.AppendString(b, 2, f.message)
		b = tw.AppendString(b, 3, f.reason)
		b = tw.AppendString(b, 4, f.field)
		b = tw.Nest(b, mark, 2)
	}
	b = tw.AppendInt(b, 3, m.nanos)
	mark := len(b)
	switch m.kind {
	case outputStep:
		s := m.step
		b = tw.AppendSint32s(b, 1, s.Tokens)
		b = tw.AppendFloats(b, 2, s.Logprobs)
		b = tw.AppendFloats(b, 3, s.Scores)
		b = tw.AppendInt(b, 4, s.TopStride)
		b = tw.AppendSint32s(b, 5, s.TopIDs)
		b = tw.AppendFloats(b, 6, s.TopLogprobs)
		b = tw.AppendUint(b, 7, uint64(len(s.Features)))
		b = tw.AppendUint(b, 8, uint64(len(s.HiddenOut)))
		b = tw.AppendUint(b, 9, uint64(len(s.Logits)))
		b = tw.Nest(b, mark, outputStep)
		if n := len(s.Features) + 4*(len(s.HiddenOut)+len(s.Logits)); n > 0 {
			b = tw.AppendLength(b, runPayload, n)
		}
	case outputPropose:
		p := m.propose
		b = tw.AppendInt(b, 1, p.Stride)
		b = tw.AppendInt(b, 2, p.Positions)
		b = tw.AppendSint32s(b, 3, p.IDs)
		b = tw.AppendFloats(b, 4, p.Logprobs)
		b = tw.AppendInt(b, 5, p.AppendNanos)
		b = tw.Nest(b, mark, outputPropose)
	}
	return b
}

// Payload implements tensorwire.Message.
func (m *runResponse) Payload(parts *tw.Parts) int {
	if m.kind != outputStep {
		return 0
	}
	parts[0], parts[1], parts[2] = m.step.Features, tw.FloatBytes(m.step.HiddenOut), tw.FloatBytes(m.step.Logits)
	return 3
}

// ReadFrom implements tensorwire.Message. The caller sets step or propose before.
func (m *runResponse) ReadFrom(r *tw.Reader) error {
	m.id, m.failure, m.nanos, m.kind = 0, failure{}, 0, 0
	m.sized, m.payloadSeen, m.direct, m.featureBytes, m.hidden, m.logits = false, false, false, 0, 0, 0
	m.early = m.early[:0]
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case tw.Tag(1, tw.Varint):
			m.id = r.Uvarint()
		case tw.Tag(2, tw.Bytes):
			readFailure(r, &m.failure)
		case tw.Tag(3, tw.Varint):
			m.nanos = r.Int64()
		case tw.Tag(outputStep, tw.Bytes):
			m.kind = outputStep
			m.readStep(r)
		case tw.Tag(outputPropose, tw.Bytes):
			m.kind = outputPropose
			m.readPropose(r)
		case tw.Tag(runPayload, tw.Bytes):
			m.payloadSeen = true
			if m.sized {
				m.direct = true
				m.scatter(r)
			} else {
				m.early = r.Append(m.early)
			}
		default:
			r.Skip(tag)
		}
	}
	if err := r.Err(); err != nil {
		return err
	}
	if m.kind == outputStep && m.payloadSeen && !m.direct {
		if err := m.scatterEarly(); err != nil {
			return err
		}
	}
	if m.kind == outputStep && !m.payloadSeen && m.payloadBytes() != 0 {
		return errPayload
	}
	return nil
}

var errPayload = rpcerr.Internal("the payload of an engine's answer does not have the announced size")

func (m *runResponse) payloadBytes() int { return m.featureBytes + 4*(m.hidden+m.logits) }

func (m *runResponse) into() *StepResult {
	if m.step != nil {
		return m.step
	}
	return &m.strayStep
}

// shape sizes the slices that the payload goes to.
func (m *runResponse) shape() {
	s := m.into()
	s.Features = room(s.Features, m.featureBytes)
	s.HiddenOut = room(s.HiddenOut, m.hidden)
	s.Logits = room(s.Logits, m.logits)
}

// scatter reads the payload with one copy.
func (m *runResponse) scatter(r *tw.Reader) {
	if n := r.Length(); n != m.payloadBytes() || r.Err() != nil {
		m.failure = failureOf(errPayload)
		r.Raw(make([]byte, n))
		return
	}
	m.shape()
	s := m.into()
	r.Raw(s.Features)
	r.Raw(tw.FloatBytes(s.HiddenOut))
	r.Raw(tw.FloatBytes(s.Logits))
}

func (m *runResponse) scatterEarly() error {
	b := m.early
	m.early = m.early[:0]
	if len(b) != m.payloadBytes() {
		return errPayload
	}
	m.shape()
	s := m.into()
	b = b[copy(s.Features, b):]
	b = b[copy(tw.FloatBytes(s.HiddenOut), b):]
	copy(tw.FloatBytes(s.Logits), b)
	return nil
}

// room returns a slice of n elements of any value, in s's memory when it is large enough.
func room[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

func readFailure(r *tw.Reader, f *failure) {
	outer := r.Message()
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case tw.Tag(1, tw.Varint):
			f.code = codes.Code(r.Int32())
		case tw.Tag(2, tw.Bytes):
			f.message = r.String("")
		case tw.Tag(3, tw.Bytes):
			f.reason = r.String("")
		case tw.Tag(4, tw.Bytes):
			f.field = r.String("")
		default:
			r.Skip(tag)
		}
	}
	r.Leave(outer)
	if f.code == codes.OK {
		f.code = codes.Unknown
	}
}

func (m *runResponse) readStep(r *tw.Reader) {
	s := m.into()
	s.Tokens, s.Logprobs, s.Scores = s.Tokens[:0], s.Logprobs[:0], s.Scores[:0]
	s.TopStride, s.TopIDs, s.TopLogprobs = 0, s.TopIDs[:0], s.TopLogprobs[:0]
	s.Features, s.HiddenOut, s.Logits = s.Features[:0], s.HiddenOut[:0], s.Logits[:0]
	outer := r.Message()
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case tw.Tag(1, tw.Varint), tw.Tag(1, tw.Bytes):
			s.Tokens = r.Sint32s(tag, s.Tokens)
		case tw.Tag(2, tw.Fixed32), tw.Tag(2, tw.Bytes):
			s.Logprobs = r.Floats(tag, s.Logprobs)
		case tw.Tag(3, tw.Fixed32), tw.Tag(3, tw.Bytes):
			s.Scores = r.Floats(tag, s.Scores)
		case tw.Tag(4, tw.Varint):
			s.TopStride = int(r.Int32())
		case tw.Tag(5, tw.Varint), tw.Tag(5, tw.Bytes):
			s.TopIDs = r.Sint32s(tag, s.TopIDs)
		case tw.Tag(6, tw.Fixed32), tw.Tag(6, tw.Bytes):
			s.TopLogprobs = r.Floats(tag, s.TopLogprobs)
		case tw.Tag(7, tw.Varint):
			m.featureBytes = int(r.Uint32())
		case tw.Tag(8, tw.Varint):
			m.hidden = int(r.Uint32())
		case tw.Tag(9, tw.Varint):
			m.logits = int(r.Uint32())
		default:
			r.Skip(tag)
		}
	}
	r.Leave(outer)
	m.sized = !m.payloadSeen
}

func (m *runResponse) readPropose(r *tw.Reader) {
	p := m.propose
	if p == nil {
		p = &m.strayPropose
	}
	p.Stride, p.Positions, p.IDs, p.Logprobs, p.AppendNanos = 0, 0, p.IDs[:0], p.Logprobs[:0], 0
	outer := r.Message()
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case tw.Tag(1, tw.Varint):
			p.Stride = int(r.Int32())
		case tw.Tag(2, tw.Varint):
			p.Positions = int(r.Int32())
		case tw.Tag(3, tw.Varint), tw.Tag(3, tw.Bytes):
			p.IDs = r.Sint32s(tag, p.IDs)
		case tw.Tag(4, tw.Fixed32), tw.Tag(4, tw.Bytes):
			p.Logprobs = r.Floats(tag, p.Logprobs)
		case tw.Tag(5, tw.Varint):
			p.AppendNanos = r.Int64()
		default:
			r.Skip(tag)
		}
	}
	r.Leave(outer)
}
