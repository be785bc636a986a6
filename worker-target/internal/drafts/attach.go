package drafts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"github.com/tandem-inference/tandem/services/transfer"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// attach makes a draft usable: it is asked what it is, gets the tables it lacks, and the engine captures its features.
func (m *Manager) attach(ctx context.Context, client tandemv1.DraftServiceClient, log *zap.Logger) (draftInfo, error) {
	digest, err := m.cfg.TablesDigest(ctx)
	if err != nil {
		return draftInfo{}, fmt.Errorf("digest of tables: %w", err)
	}
	e, err := m.cfg.Engine()
	if err != nil {
		return draftInfo{}, err
	}
	target := e.Info()
	ask := func() (*tandemv1.GetDraftResponse, error) {
		call, cancel := context.WithTimeout(ctx, attachTimeout)
		defer cancel()
		return client.GetDraft(call, &tandemv1.GetDraftRequest{
			TablesDigest: digest, TokenizerDigest: m.cfg.TokenizerDigest,
			TargetHidden: int32(target.Hidden), TargetLayers: int32(target.Layers), TargetVocab: int32(target.Vocab),
		}, grpc.MaxCallRecvMsgSize(mostDescription))
	}
	d, err := ask()
	if err != nil {
		return draftInfo{}, err
	}
	if d.NeedsTables {
		log.Info("handing over embedding and head")
		tables, err := m.cfg.TablesFile(ctx)
		if err != nil {
			return draftInfo{}, fmt.Errorf("cut tables: %w", err)
		}
		if err := putTables(ctx, client, tables, digest); err != nil {
			return draftInfo{}, fmt.Errorf("put tables: %w", err)
		}
		if d, err = ask(); err != nil {
			return draftInfo{}, err
		}
	}
	if !d.Ready {
		return draftInfo{}, errNotReady
	}
	info, err := describe(d, target)
	if err != nil {
		return draftInfo{}, err
	}
	if err := m.adopt(ctx, e, client, d, info, log); err != nil {
		return draftInfo{}, err
	}
	return info, nil
}

// describe reads a draft's description, which is another process's word, and returns what is used of it. Everything
// that is not refused here is within what engine, cost model and messages can hold.
func describe(d *tandemv1.GetDraftResponse, target engine.Info) (draftInfo, error) {
	if err := check(d, target); err != nil {
		return draftInfo{}, err
	}
	info := draftInfo{workerID: d.WorkerId, digest: d.DraftDigest, block: min(int(d.BlockSize), auto.MaxBlock),
		maxContext: int(d.MaxContext)}
	if target.MaxTreeRows > 0 {
		info.block = min(info.block, target.MaxTreeRows) // a step does not verify more
	}
	if info.maxContext > 0 {
		info.block = min(info.block, info.maxContext/2) // and something to draft from must fit beside the block
	}
	if info.block < 2 {
		return draftInfo{}, rpcerr.ModelMismatch.With("max_context: the draft reports %d positions, which hold no block "+
			"beside its context", d.MaxContext)
	}
	return info, nil
}

const (
	// mostText bounds names and digests of a description in bytes, mostDescription a whole one.
	mostText        = 256
	mostDescription = 64 << 10
	// mostContext bounds a draft's positions: positions of rows must fit 32 bits with room to add.
	mostContext = 1 << 30
)

// check compares a draft's description with the target.
func check(d *tandemv1.GetDraftResponse, target engine.Info) error {
	refuse := rpcerr.ModelMismatch.With
	switch {
	case len(d.WorkerId) > mostText:
		return refuse("worker_id: has %d bytes, at most %d are allowed", len(d.WorkerId), mostText)
	case d.DraftDigest == "" || len(d.DraftDigest) > mostText:
		return refuse("draft_digest: has %d bytes, must have 1 to %d", len(d.DraftDigest), mostText)
	case d.BlockSize < 2:
		return refuse("block_size: the draft reports %d, at least 2 are needed", d.BlockSize)
	case d.MaxContext < 0 || d.MaxContext > mostContext:
		return refuse("max_context: the draft reports %d, must be in 0..%d", d.MaxContext, mostContext)
	case len(d.CaptureLayers) == 0 || len(d.CaptureLayers) > target.Layers:
		return refuse("capture_layers: the draft reports %d layers, the target has %d", len(d.CaptureLayers), target.Layers)
	case d.MaskToken < 0 || int(d.MaskToken) >= target.Vocab:
		return refuse("mask_token: the draft masks with token %d, the target's vocabulary has %d", d.MaskToken, target.Vocab)
	case d.FusedWidth < 0 || int(d.FusedWidth) > len(d.CaptureLayers)*target.Hidden:
		return refuse("fused_width: the draft reports %d, raw features have %d values", d.FusedWidth,
			len(d.CaptureLayers)*target.Hidden)
	}
	for i, layer := range d.CaptureLayers {
		switch {
		case layer < 0 || int(layer) >= target.Layers:
			return refuse("capture_layers: the draft captures layer %d, the target has %d layers", layer, target.Layers)
		case i > 0 && layer <= d.CaptureLayers[i-1]:
			return refuse("capture_layers: layer %d follows layer %d, they must ascend", layer, d.CaptureLayers[i-1])
		}
	}
	return nil
}

// mostFuse is the largest size in bytes of a projection file: fc and its norm as 32-bit floats, and a megabyte
// of metadata.
func mostFuse(d *tandemv1.GetDraftResponse, target engine.Info) int64 {
	return 4*int64(d.FusedWidth)*(int64(len(d.CaptureLayers))*int64(target.Hidden)+1) + 1<<20
}

// adopt makes the engine capture what the draft reads, unless it does already. Features of running requests must keep
// their layout, so another draft model is taken up only when nobody uses the present one.
func (m *Manager) adopt(ctx context.Context, e Engine, client tandemv1.DraftServiceClient,
	d *tandemv1.GetDraftResponse, info draftInfo, log *zap.Logger) error {
	m.captureMu.Lock()
	defer m.captureMu.Unlock()
	m.mu.Lock()
	current, inUse := m.current, m.links > 0
	for _, p := range m.peers {
		if ready, digest := p.state(); ready && current != nil && digest == current.draftDigest {
			inUse = true
		}
	}
	m.mu.Unlock()
	next := &Capture{
		Encoding: engine.FeatureFusedBF16,
		Width:    2 * int(d.FusedWidth), Block: info.block, draftDigest: d.DraftDigest, layers: d.CaptureLayers,
		fuseDigest: d.FuseDigest,
	}
	if current != nil && current.same(next) {
		return nil
	}
	if current != nil && inUse {
		if current.draftDigest == d.DraftDigest { // a draft that lies about itself must not decide for those that do not
			return rpcerr.ModelMismatch.With("the draft %.12s is attached with another block, layers or projection",
				d.DraftDigest)
		}
		return otherInUse{rpcerr.ModelMismatch.With("another draft model is attached (%.12s), this one is %.12s",
			current.draftDigest, d.DraftDigest)}
	}
	path, err := "", errors.New("the draft reports no fused features")
	if d.FusedWidth > 0 {
		path, err = m.fuse(ctx, client, d.FuseDigest, mostFuse(d, e.Info()))
	}
	if err == nil {
		err = e.LoadFuse(ctx, path)
	}
	if err == nil {
		if i := e.Info(); i.FeatureFused != int(d.FusedWidth) || !slices.Equal(i.CaptureLayers, d.CaptureLayers) {
			err = fmt.Errorf("the projection makes %d values of layers %v, the draft reports %d of %v",
				i.FeatureFused, i.CaptureLayers, d.FusedWidth, d.CaptureLayers)
		}
	}
	if err == nil {
		next.fusePath = path
	} else {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if rpcerr.Code(err) == codes.Unavailable { // the engine died, or the draft: try again later
			return err
		}
		// Raw features are five times the bytes and give the same proposals.
		log.Warn("features cannot be fused, sending raw ones", zap.NamedError(telemetry.KeyErr, err))
		next.Encoding = engine.FeatureRawBF16
		next.Width = 2 * len(d.CaptureLayers) * e.Info().Hidden
		if err := e.SetCapture(ctx, d.CaptureLayers); err != nil {
			return fmt.Errorf("capture layers %v: %w", d.CaptureLayers, err)
		}
	}
	m.mu.Lock()
	m.current = next
	m.mu.Unlock()
	return nil
}

func putTables(ctx context.Context, client tandemv1.DraftServiceClient, path, digest string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.PutTables(ctx)
	if err != nil {
		return err
	}
	m := &tandemv1.PutTablesRequest{Digest: digest, TotalBytes: stat.Size()}
	err = transfer.Send(f, tensorwire.ChunkBytes, func(piece []byte) error {
		m.Chunk = piece
		err := stream.Send(m)
		m = &tandemv1.PutTablesRequest{}
		return err
	})
	if err != nil && !errors.Is(err, io.EOF) { // EOF: CloseAndRecv has the reason
		return err
	}
	_, err = stream.CloseAndRecv()
	return err
}

// fuse returns the draft's projection as a file, from the cache when it is there. most is the largest size in bytes
// that it can have.
func (m *Manager) fuse(ctx context.Context, client tandemv1.DraftServiceClient, digest string,
	most int64) (string, error) {
	if len(digest) != 2*sha256.Size {
		return "", fmt.Errorf("draft reports fuse digest %.80q", digest)
	}
	if _, err := hex.DecodeString(digest); err != nil {
		return "", fmt.Errorf("draft reports fuse digest %q", digest)
	}
	path := filepath.Join(m.cfg.CacheDir, "fuse-"+digest+".gguf")
	if sum, err := fileDigest(path); err == nil && sum == digest {
		return path, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.GetFuse(ctx, &tandemv1.GetFuseRequest{},
		grpc.MaxCallRecvMsgSize(tensorwire.ChunkBytes+mostDescription))
	if err != nil {
		return "", err
	}
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return "", rpcerr.DataLoss("the draft sent no projection")
	}
	if err != nil {
		return "", err
	}
	pending := first.Chunk
	part, err := transfer.Receive(ctx, m.cfg.CacheDir, "fuse-*.part",
		transfer.Limits{Total: first.TotalBytes, Most: most, Digest: digest},
		func() ([]byte, error) {
			if chunk := pending; chunk != nil {
				pending = nil
				return chunk, nil
			}
			next, err := stream.Recv()
			return next.GetChunk(), err
		})
	if err != nil {
		return "", err
	}
	if err := os.Rename(part, path); err != nil {
		os.Remove(part)
		return "", err
	}
	return path, nil
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
