package engineplugin

import (
	"unsafe"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/rpcerr"
	tw "github.com/tandem-inference/tandem/services/tensorwire"
)

// Kinds of work on the Run stream: the numbers of the oneof's fields in RunRequest.
const (
	workStep    = 2
	workPropose = 3
)

const runPayload = 15

// runRequest is enginev1.RunRequest without its cost: it writes the caller's Step or proposal as they are and reads into
// memory that is used again.
type runRequest struct {
	id       uint64
	kind     int
	step     *Step
	features []FeatureRows
	requests []DraftRequest

	// Reading only.
	own         Step // what step points to
	words       []uint32
	bytes       int // length of the payload, in words
	maskWords   int
	hiddenWords int
	dataBytes   []uint32 // of each of features
}

// AppendHeader implements tensorwire.Message.
func (m *runRequest) AppendHeader(b []byte) []byte {
	b = tw.AppendUint(b, 1, m.id)
	mark := len(b)
	payload := 0
	if m.kind == workStep {
		b, payload = appendStep(b, m.step), 4*(len(m.step.Masks)+len(m.step.HiddenIn))
	} else {
		for i := range m.features {
			f := &m.features[i]
			at := len(b)
			b = tw.AppendInt(b, 1, f.Sequence)
			b = tw.AppendSint(b, 2, f.Position)
			b = tw.AppendSint(b, 3, f.Rows)
			b = tw.AppendInt(b, 4, f.Encoding)
			b = tw.AppendUint(b, 5, uint64(len(f.Data)))
			b = tw.Nest(b, at, 1)
			payload += len(f.Data)
		}
		for i := range m.requests {
			r := &m.requests[i]
			at := len(b)
			b = tw.AppendInt(b, 1, r.Sequence)
			b = tw.AppendSint(b, 2, r.Token)
			b = tw.AppendSint(b, 3, r.Position)
			b = tw.AppendSint(b, 4, r.Block)
			b = tw.AppendSint(b, 5, r.TopK)
			b = tw.AppendFloat(b, 6, r.Temperature)
			b = tw.Nest(b, at, 2)
		}
	}
	b = tw.Nest(b, mark, uint32(m.kind))
	if payload > 0 {
		b = tw.AppendLength(b, runPayload, payload)
		if m.kind == workPropose && len(m.features) > maxFeatureParts {
			for i := range m.features { // more pieces than a message passes by reference: a copy
				b = append(b, m.features[i].Data...)
			}
		}
	}
	return b
}

// maxFeatureParts is how many pieces of features pass by reference.
const maxFeatureParts = len(tw.Parts{})

func appendStep(b []byte, s *Step) []byte {
	for i := range s.Rows {
		r := &s.Rows[i]
		at := len(b)
		b = tw.AppendSint(b, 2, r.Token)
		b = tw.AppendSint(b, 3, r.Position)
		b = tw.AppendSint(b, 4, r.Parent)
		b = tw.AppendUint(b, 5, uint64(r.Want))
		b = tw.AppendInt(b, 6, r.TopK)
		b = tw.AppendSint(b, 7, r.Score)
		b = tw.AppendSint(b, 8, r.Mask)
		b = tw.Nest(b, at, 2)
	}
	b = tw.AppendInt(b, 4, s.NMasks)
	b = tw.AppendUint(b, 5, uint64(len(s.Masks)))
	b = tw.AppendUint(b, 6, uint64(len(s.HiddenIn)))
	b = tw.AppendInt(b, 7, s.Features)
	for i := range s.Groups {
		g := &s.Groups[i]
		at := len(b)
		b = tw.AppendInt(b, 1, g.Sequence)
		b = tw.AppendSint(b, 2, int32(g.Rows))
		b = tw.AppendInt(b, 3, int32(g.Kind+firstKind))
		b = tw.AppendBool(b, 4, g.Commit)
		b = tw.AppendInt32s(b, 5, g.Path)
		b = tw.AppendSint(b, 6, g.Kept.Position)
		b = tw.AppendSint(b, 7, g.Kept.Rows)
		b = tw.Nest(b, at, 9)
	}
	return b
}

const (
	// firstKind is the number of KindDecode in messages, where 0 is a kind that was not stated.
	firstKind = 1
	// kindUnstated is what such a group has: engines refuse it.
	kindUnstated = ^GroupKind(0)
)

// Payload implements tensorwire.Message.
func (m *runRequest) Payload(parts *tw.Parts) int {
	if m.kind == workStep {
		parts[0], parts[1] = tw.WordBytes(m.step.Masks), tw.FloatBytes(m.step.HiddenIn)
		return 2
	}
	if len(m.features) > maxFeatureParts {
		return 0
	}
	for i := range m.features {
		parts[i] = m.features[i].Data
	}
	return len(m.features)
}

// ReadFrom implements tensorwire.Message.
func (m *runRequest) ReadFrom(r *tw.Reader) error {
	s := &m.own
	m.step, m.id, m.kind = s, 0, 0
	m.bytes, m.maskWords, m.hiddenWords = 0, 0, 0
	s.Groups, s.Rows, s.NMasks, s.Features = s.Groups[:0], s.Rows[:0], 0, FeatureNone
	m.features, m.requests, m.dataBytes = m.features[:0], m.requests[:0], m.dataBytes[:0]
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case tw.Tag(1, tw.Varint):
			m.id = r.Uvarint()
		case tw.Tag(workStep, tw.Bytes):
			m.kind = workStep
			m.readStep(r)
		case tw.Tag(workPropose, tw.Bytes):
			m.kind = workPropose
			m.readPropose(r)
		case tw.Tag(runPayload, tw.Bytes):
			m.bytes = r.Length()
			n := (m.bytes + 3) / 4
			if cap(m.words) < n {
				m.words = make([]uint32, n)
			}
			m.words = m.words[:n]
			r.Raw(tw.WordBytes(m.words)[:m.bytes])
		default:
			r.Skip(tag)
		}
	}
	if err := r.Err(); err != nil {
		return err
	}
	return m.split()
}

// split hands the payload out to those it belongs to.
func (m *runRequest) split() error {
	s := &m.own
	s.Masks, s.HiddenIn = nil, nil
	if m.kind == workPropose {
		data := tw.WordBytes(m.words[:(m.bytes+3)/4])[:m.bytes]
		for i := range m.features {
			n := m.dataBytes[i]
			if uint64(n) > uint64(len(data)) {
				return rpcerr.InvalidArgument("payload", "is shorter than its features")
			}
			m.features[i].Data, data = data[:n:n], data[n:]
		}
		if len(data) > 0 {
			return rpcerr.InvalidArgument("payload", "is longer than its features")
		}
		return nil
	}
	if m.bytes != 4*(m.maskWords+m.hiddenWords) {
		return rpcerr.InvalidArgument("payload", "has %d bytes, masks and hidden rows need %d", m.bytes, 4*(m.maskWords+m.hiddenWords))
	}
	words := m.words[:m.bytes/4]
	if m.maskWords > 0 {
		s.Masks = words[:m.maskWords:m.maskWords]
	}
	if m.hiddenWords > 0 {
		h := words[m.maskWords:]
		s.HiddenIn = unsafe.Slice((*float32)(unsafe.Pointer(&h[0])), len(h))
	}
	return nil
}

// maxPayloadWords keeps sums of announced sizes far from overflow.
const maxPayloadWords = tw.MaxMessageBytes / 4

func (m *runRequest) readStep(r *tw.Reader) {
	s := &m.own
	outer := r.Message()
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case tw.Tag(2, tw.Bytes):
			s.Rows = append(s.Rows, readRow(r))
		case tw.Tag(4, tw.Varint):
			s.NMasks = int(r.Int32())
		case tw.Tag(5, tw.Varint):
			m.maskWords = int(min(r.Uint32(), maxPayloadWords))
		case tw.Tag(6, tw.Varint):
			m.hiddenWords = int(min(r.Uint32(), maxPayloadWords))
		case tw.Tag(7, tw.Varint):
			s.Features = FeatureEncoding(r.Int32())
		case tw.Tag(9, tw.Bytes):
			n := len(s.Groups)
			if n < cap(s.Groups) { // keeps the Path's memory of an earlier message
				s.Groups = s.Groups[:n+1]
			} else {
				s.Groups = append(s.Groups, Group{})
			}
			readGroup(r, &s.Groups[n])
		default:
			r.Skip(tag)
		}
	}
	r.Leave(outer)
}

func readGroup(r *tw.Reader, g *Group) {
	*g = Group{Path: g.Path[:0], Kind: kindUnstated}
	outer := r.Message()
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case tw.Tag(1, tw.Varint):
			g.Sequence = Sequence(r.Int32())
		case tw.Tag(2, tw.Varint):
			g.Rows = int(r.Sint32())
		case tw.Tag(3, tw.Varint):
			g.Kind = GroupKind(r.Int32()) - firstKind
		case tw.Tag(4, tw.Varint):
			g.Commit = r.Bool()
		case tw.Tag(5, tw.Varint), tw.Tag(5, tw.Bytes):
			g.Path = r.Int32s(tag, g.Path)
		case tw.Tag(6, tw.Varint):
			g.Kept.Position = r.Sint32()
		case tw.Tag(7, tw.Varint):
			g.Kept.Rows = r.Sint32()
		default:
			r.Skip(tag)
		}
	}
	r.Leave(outer)
}

func readRow(r *tw.Reader) (row Row) {
	outer := r.Message()
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case tw.Tag(2, tw.Varint):
			row.Token = r.Sint32()
		case tw.Tag(3, tw.Varint):
			row.Position = r.Sint32()
		case tw.Tag(4, tw.Varint):
			row.Parent = r.Sint32()
		case tw.Tag(5, tw.Varint):
			row.Want = r.Uint32()
		case tw.Tag(6, tw.Varint):
			row.TopK = r.Int32()
		case tw.Tag(7, tw.Varint):
			row.Score = r.Sint32()
		case tw.Tag(8, tw.Varint):
			row.Mask = r.Sint32()
		default:
			r.Skip(tag)
		}
	}
	r.Leave(outer)
	return row
}

func (m *runRequest) readPropose(r *tw.Reader) {
	outer := r.Message()
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case tw.Tag(1, tw.Bytes):
			f, n := readFeatureRows(r)
			m.features, m.dataBytes = append(m.features, f), append(m.dataBytes, n)
		case tw.Tag(2, tw.Bytes):
			m.requests = append(m.requests, readDraftRequest(r))
		default:
			r.Skip(tag)
		}
	}
	r.Leave(outer)
}

// readFeatureRows returns a header and the number of payload bytes that belong to it.
func readFeatureRows(r *tw.Reader) (f FeatureRows, dataBytes uint32) {
	outer := r.Message()
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case tw.Tag(1, tw.Varint):
			f.Sequence = Sequence(r.Int32())
		case tw.Tag(2, tw.Varint):
			f.Position = r.Sint32()
		case tw.Tag(3, tw.Varint):
			f.Rows = r.Sint32()
		case tw.Tag(4, tw.Varint):
			f.Encoding = FeatureEncoding(r.Int32())
		case tw.Tag(5, tw.Varint):
			dataBytes = r.Uint32()
		default:
			r.Skip(tag)
		}
	}
	r.Leave(outer)
	return f, dataBytes
}

func readDraftRequest(r *tw.Reader) (d DraftRequest) {
	outer := r.Message()
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case tw.Tag(1, tw.Varint):
			d.Sequence = Sequence(r.Int32())
		case tw.Tag(2, tw.Varint):
			d.Token = r.Sint32()
		case tw.Tag(3, tw.Varint):
			d.Position = r.Sint32()
		case tw.Tag(4, tw.Varint):
			d.Block = r.Sint32()
		case tw.Tag(5, tw.Varint):
			d.TopK = r.Sint32()
		case tw.Tag(6, tw.Fixed32):
			d.Temperature = r.Float()
		default:
			r.Skip(tag)
		}
	}
	r.Leave(outer)
	return d
}

// failure is enginev1.Failure.
type failure struct {
	code    codes.Code
	message string
	reason  string
	field   string
}

func failureOf(err error) failure {
	e := rpcerr.From(err)
	f := failure{code: e.Code(), message: e.Error(), reason: e.Reason()}
	if v := e.Violations(); len(v) > 0 {
		f.field = v[0].Field
	}
	return f
}

func (f *failure) err() error {
	if f.code == codes.OK {
		return nil
	}
	e := rpcerr.New(f.code, f.reason, f.message)
	if f.field != "" {
		return e.WithViolation(f.field, f.message)
	}
	return e
}
