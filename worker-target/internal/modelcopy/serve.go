package modelcopy

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"github.com/tandem-inference/tandem/services/workernode"
)

const (
	// blockBytes is what is verified, and fetched again when it is wrong. Larger ones cost more to repeat, smaller ones
	// make lists longer: 4096 digests for 16 GiB.
	blockBytes = 4 << 20
	// mostSent is how many calls are sent blocks at a time. More share the same network and disk.
	mostSent = 4
	// mostAsked bounds the blocks of a call.
	mostAsked = 1024
	// digestsBatch is how many digests are in a message: one comes after so many blocks were read.
	digestsBatch = 32
	// mostParts bounds the parts whose digests are kept.
	mostParts = 64
)

// Server implements ModelService for an open model.
type Server struct {
	tandemv1.UnimplementedModelServiceServer
	file    *gguf.File
	sending atomic.Int32

	mu    sync.Mutex // guards parts
	parts map[partID]*part
}

// partID is what a ModelPart names.
type partID struct{ first, last, shard int }

func idOf(p *tandemv1.ModelPart) partID {
	return partID{int(p.GetLayerFirst()), int(p.GetLayerLast()), int(p.GetShard())}
}

// part is one that was asked for.
type part struct {
	*gguf.Part
	hashing chan struct{} // holds a value while the fields below are made
	digests []byte        // of its blocks; nil = not made yet
	model   string        // digest that the part stands for
}

// NewServer serves an open file, which the caller closes after the last call.
func NewServer(file *gguf.File) *Server { return &Server{file: file, parts: map[partID]*part{}} }

// GetModel implements tandemv1.ModelServiceServer.
func (s *Server) GetModel(context.Context, *tandemv1.GetModelRequest) (*tandemv1.GetModelResponse, error) {
	m, err := s.file.Model()
	if err != nil {
		return nil, rpcerr.FailedPrecondition("the model cannot be read: %v", err)
	}
	return &tandemv1.GetModelResponse{Name: m.Name, NLayers: int32(m.Layers), Shards: int32(len(s.file.Paths()))}, nil
}

// find returns a part that the file holds.
func (s *Server) find(id partID) (*part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.parts[id]; p != nil {
		return p, nil
	}
	made, err := s.make(id)
	if err != nil {
		return nil, err
	}
	if len(s.parts) >= mostParts {
		clear(s.parts)
	}
	p := &part{Part: made, hashing: make(chan struct{}, 1)}
	s.parts[id] = p
	return p, nil
}

func (s *Server) make(id partID) (*gguf.Part, error) {
	m, err := s.file.Model()
	if err != nil {
		return nil, rpcerr.FailedPrecondition("the model cannot be read: %v", err)
	}
	if id.first == 0 && id.last == 0 {
		if err := m.CheckComplete(); err != nil {
			return nil, rpcerr.NotFound("this worker has a part of the model only: %v", err)
		}
		p, err := s.file.Shard(id.shard)
		if err != nil {
			return nil, rpcerr.InvalidArgument("part.shard", "%v", err)
		}
		return p, nil
	}
	if id.shard != 0 {
		return nil, rpcerr.InvalidArgument("part.shard", "is %d, layers have none", id.shard)
	}
	if err := workernode.LacksLayers(s.file, id.first, id.last, m.Layers); err != nil {
		return nil, rpcerr.NotFound("this worker lacks the layers: %v", err)
	}
	p, err := s.file.Part(workernode.LayerTensors(s.file, id.first, id.last, m.Layers))
	if err != nil {
		return nil, rpcerr.FailedPrecondition("%v", err)
	}
	return p, nil
}

// blocks of a part.
func (p *part) blocks() int { return int((p.Size() + blockBytes - 1) / blockBytes) }

// block is where a block lies.
func (p *part) block(i int) (at int64, n int) {
	at = int64(i) * blockBytes
	return at, int(min(blockBytes, p.Size()-at))
}

// refusal is what a caller is told of an error of reading.
func refusal(err error) error {
	if errors.Is(err, gguf.ErrChanged) {
		return rpcerr.DataLoss("the worker's model file has changed since it was opened")
	}
	return err
}

// ListBlocks implements tandemv1.ModelServiceServer.
func (s *Server) ListBlocks(m *tandemv1.ListBlocksRequest, stream tandemv1.ModelService_ListBlocksServer) error {
	ctx := stream.Context()
	id := idOf(m.GetPart())
	p, err := s.find(id)
	if err != nil {
		return err
	}
	err = stream.Send(&tandemv1.ListBlocksResponse{Message: &tandemv1.ListBlocksResponse_Header{
		Header: &tandemv1.PartHeader{TotalBytes: p.Size(), BlockBytes: blockBytes}}})
	if err != nil {
		return err
	}
	send := func(digests []byte) error {
		return stream.Send(&tandemv1.ListBlocksResponse{
			Message: &tandemv1.ListBlocksResponse_Digests{Digests: digests}})
	}
	select {
	case p.hashing <- struct{}{}:
	case <-ctx.Done():
		return rpcerr.From(ctx.Err())
	}
	defer func() { <-p.hashing }()
	if p.digests == nil {
		if err := s.hash(ctx, id, p, send); err != nil {
			return refusal(err)
		}
	} else {
		for rest := p.digests; len(rest) > 0; {
			n := min(len(rest), digestsBatch*sha256.Size)
			if err := send(rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
	}
	return stream.Send(&tandemv1.ListBlocksResponse{
		Message: &tandemv1.ListBlocksResponse_ModelDigest{ModelDigest: p.model}})
}

// hash reads a part and sends the digests of its blocks as they are made.
func (s *Server) hash(ctx context.Context, id partID, p *part, send func([]byte) error) error {
	r, err := p.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	var digests []byte
	sent := 0
	buffer := make([]byte, blockBytes)
	for i := range p.blocks() {
		if err := ctx.Err(); err != nil {
			return rpcerr.From(err)
		}
		at, n := p.block(i)
		if _, err := r.ReadAt(buffer[:n], at); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		sum := sha256.Sum256(buffer[:n])
		digests = append(digests, sum[:]...)
		if len(digests)-sent == digestsBatch*sha256.Size || i == p.blocks()-1 {
			if err := send(digests[sent:]); err != nil {
				return err
			}
			sent = len(digests)
		}
	}
	model, err := s.digest(ctx, id)
	if err != nil {
		return err
	}
	if err := r.Unchanged(); err != nil {
		return err
	}
	p.digests, p.model = digests, model
	return nil
}

// digest of what a part stands for.
func (s *Server) digest(ctx context.Context, id partID) (string, error) {
	if id.last == 0 {
		return s.file.Digest(ctx)
	}
	m, err := s.file.Model()
	if err != nil {
		return "", err
	}
	return workernode.LayersDigest(ctx, s.file, id.first, id.last, m.Layers)
}

// FetchBlocks implements tandemv1.ModelServiceServer.
func (s *Server) FetchBlocks(m *tandemv1.FetchBlocksRequest, stream tandemv1.ModelService_FetchBlocksServer) error {
	p, err := s.find(idOf(m.GetPart()))
	if err != nil {
		return err
	}
	if n := len(m.GetBlocks()); n > mostAsked {
		return rpcerr.InvalidArgument("blocks", "are %d, at most %d are sent at a time", n, mostAsked)
	}
	for i, b := range m.GetBlocks() {
		if b < 0 || int(b) >= p.blocks() {
			return rpcerr.InvalidArgument("blocks", "%d at %d is not in 0..%d", b, i, p.blocks()-1)
		}
	}
	defer s.sending.Add(-1)
	if s.sending.Add(1) > mostSent {
		return rpcerr.ResourceExhausted("%d others are being sent blocks", mostSent)
	}
	r, err := p.Open()
	if err != nil {
		return refusal(err)
	}
	defer r.Close()
	for _, b := range m.GetBlocks() {
		at, n := p.block(int(b))
		for from := 0; from < n; from += tensorwire.ChunkBytes {
			// The channel borrows the memory beyond Send.
			chunk := make([]byte, min(tensorwire.ChunkBytes, n-from))
			if _, err := r.ReadAt(chunk, at+int64(from)); err != nil && !errors.Is(err, io.EOF) {
				return refusal(err)
			}
			if err := stream.Send(&tandemv1.FetchBlocksResponse{Block: b, Chunk: chunk}); err != nil {
				return err
			}
		}
		if err := r.Unchanged(); err != nil {
			return refusal(err)
		}
	}
	return nil
}
