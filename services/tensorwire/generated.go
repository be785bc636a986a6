package tensorwire

import (
	"google.golang.org/protobuf/proto"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// Generated messages that the codec writes and reads by hand: those of the speculation stream, and chunks of files and
// states. Unknown fields are not kept.

// payloadNumber is the number of the payload field in all of them.
const payloadNumber = 15

// appendGenerated appends the header of a known message and returns its payload.
func appendGenerated(b []byte, m proto.Message) (header, payload []byte, known bool) {
	switch m := m.(type) {
	case *tandemv1.SpeculateRequest:
		b, payload = appendSpeculateRequest(b, m), m.Features
	case *tandemv1.SpeculateResponse:
		b = appendSpeculateResponse(b, m)
	case *tandemv1.PutTablesRequest:
		b, payload = AppendInt(AppendString(b, 1, m.Digest), 2, m.TotalBytes), m.Chunk
	case *tandemv1.GetFuseResponse:
		b, payload = AppendInt(AppendString(b, 1, m.Digest), 2, m.TotalBytes), m.Chunk
	case *enginev1.ExportSequenceResponse:
		b, payload = AppendUint(b, 1, m.TotalBytes), m.Chunk
	case *enginev1.ImportSequenceRequest:
		b, payload = AppendUint(AppendInt(b, 1, m.Sequence), 2, m.TotalBytes), m.Chunk
	default:
		return b, nil, false
	}
	if len(payload) > 0 {
		b = AppendLength(b, payloadNumber, len(payload))
	}
	return b, payload, true
}

// readGenerated reads into a known message, using its slices again; false leaves r untouched.
func readGenerated(r *Reader, v any) bool {
	switch m := v.(type) {
	case *tandemv1.SpeculateRequest:
		readSpeculateRequest(r, m)
	case *tandemv1.SpeculateResponse:
		readSpeculateResponse(r, m)
	case *tandemv1.PutTablesRequest:
		readChunk(r, &m.Digest, &m.TotalBytes, &m.Chunk)
	case *tandemv1.GetFuseResponse:
		readChunk(r, &m.Digest, &m.TotalBytes, &m.Chunk)
	case *enginev1.ExportSequenceResponse:
		m.TotalBytes, m.Chunk = 0, m.Chunk[:0]
		for tag := r.Next(); tag != 0; tag = r.Next() {
			switch tag {
			case Tag(1, Varint):
				m.TotalBytes = r.Uvarint()
			case Tag(payloadNumber, Bytes):
				m.Chunk = r.Append(m.Chunk)
			default:
				r.Skip(tag)
			}
		}
	case *enginev1.ImportSequenceRequest:
		m.Sequence, m.TotalBytes, m.Chunk = 0, 0, m.Chunk[:0]
		for tag := r.Next(); tag != 0; tag = r.Next() {
			switch tag {
			case Tag(1, Varint):
				m.Sequence = r.Int32()
			case Tag(2, Varint):
				m.TotalBytes = r.Uvarint()
			case Tag(payloadNumber, Bytes):
				m.Chunk = r.Append(m.Chunk)
			default:
				r.Skip(tag)
			}
		}
	default:
		return false
	}
	return true
}

func readChunk(r *Reader, digest *string, total *int64, chunk *[]byte) {
	old := *digest
	*digest, *total, *chunk = "", 0, (*chunk)[:0]
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case Tag(1, Bytes):
			*digest = r.String(old)
		case Tag(2, Varint):
			*total = r.Int64()
		case Tag(payloadNumber, Bytes):
			*chunk = r.Append(*chunk)
		default:
			r.Skip(tag)
		}
	}
}

func appendSpeculateRequest(b []byte, m *tandemv1.SpeculateRequest) []byte {
	b = AppendString(b, 1, m.SessionId)
	b = AppendUint(b, 2, m.Epoch)
	b = AppendUint(b, 3, m.Step)
	b = AppendInt(b, 4, m.FeaturePosition)
	b = AppendInt(b, 5, m.FeatureRows)
	b = AppendInt(b, 6, m.FeatureEncoding)
	if p := m.Propose; p != nil {
		mark := len(b)
		b = AppendInt(b, 1, p.Anchor)
		b = AppendInt(b, 2, p.Position)
		b = AppendInt(b, 3, p.Budget)
		b = AppendInt(b, 4, p.Block)
		b = AppendInt(b, 5, p.Mode)
		b = AppendInt(b, 6, p.DeadlineUs)
		b = Nest(b, mark, 7)
	}
	return b
}

func readSpeculateRequest(r *Reader, m *tandemv1.SpeculateRequest) {
	session, propose := m.SessionId, m.Propose
	m.SessionId, m.Epoch, m.Step = "", 0, 0
	m.FeaturePosition, m.FeatureRows, m.FeatureEncoding = 0, 0, 0
	m.Propose, m.Features = nil, m.Features[:0]
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case Tag(1, Bytes):
			m.SessionId = r.String(session)
		case Tag(2, Varint):
			m.Epoch = r.Uvarint()
		case Tag(3, Varint):
			m.Step = r.Uvarint()
		case Tag(4, Varint):
			m.FeaturePosition = r.Int32()
		case Tag(5, Varint):
			m.FeatureRows = r.Int32()
		case Tag(6, Varint):
			m.FeatureEncoding = tandemv1.FeatureEncoding(r.Int32())
		case Tag(7, Bytes):
			if m.Propose == nil {
				if propose == nil {
					propose = new(tandemv1.Propose)
				}
				m.Propose = propose
				propose.Anchor, propose.Position, propose.Budget, propose.Block, propose.Mode, propose.DeadlineUs = 0, 0, 0, 0, 0, 0
			}
			readPropose(r, m.Propose)
		case Tag(payloadNumber, Bytes):
			m.Features = r.Append(m.Features)
		default:
			r.Skip(tag)
		}
	}
}

func readPropose(r *Reader, p *tandemv1.Propose) {
	outer := r.Message()
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case Tag(1, Varint):
			p.Anchor = r.Int32()
		case Tag(2, Varint):
			p.Position = r.Int32()
		case Tag(3, Varint):
			p.Budget = r.Int32()
		case Tag(4, Varint):
			p.Block = r.Int32()
		case Tag(5, Varint):
			p.Mode = tandemv1.SpeculationMode(r.Int32())
		case Tag(6, Varint):
			p.DeadlineUs = r.Int32()
		default:
			r.Skip(tag)
		}
	}
	r.Leave(outer)
}

func appendSpeculateResponse(b []byte, m *tandemv1.SpeculateResponse) []byte {
	b = AppendUint(b, 1, m.Epoch)
	b = AppendUint(b, 2, m.Step)
	b = AppendInt(b, 3, m.Length)
	b = AppendInt32s(b, 4, m.Tokens)
	b = AppendInt32s(b, 5, m.Parents)
	b = AppendFloats(b, 6, m.Logprobs)
	b = AppendInt(b, 7, m.AppendUs)
	b = AppendInt(b, 8, m.ForwardUs)
	return AppendInt(b, 9, m.BuildUs)
}

func readSpeculateResponse(r *Reader, m *tandemv1.SpeculateResponse) {
	m.Epoch, m.Step, m.Length = 0, 0, 0
	m.Tokens, m.Parents, m.Logprobs = m.Tokens[:0], m.Parents[:0], m.Logprobs[:0]
	m.AppendUs, m.ForwardUs, m.BuildUs = 0, 0, 0
	for tag := r.Next(); tag != 0; tag = r.Next() {
		switch tag {
		case Tag(1, Varint):
			m.Epoch = r.Uvarint()
		case Tag(2, Varint):
			m.Step = r.Uvarint()
		case Tag(3, Varint):
			m.Length = r.Int32()
		case Tag(4, Varint), Tag(4, Bytes):
			m.Tokens = r.Int32s(tag, m.Tokens)
		case Tag(5, Varint), Tag(5, Bytes):
			m.Parents = r.Int32s(tag, m.Parents)
		case Tag(6, Fixed32), Tag(6, Bytes):
			m.Logprobs = r.Floats(tag, m.Logprobs)
		case Tag(7, Varint):
			m.AppendUs = r.Int32()
		case Tag(8, Varint):
			m.ForwardUs = r.Int32()
		case Tag(9, Varint):
			m.BuildUs = r.Int32()
		default:
			r.Skip(tag)
		}
	}
}
