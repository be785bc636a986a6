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
	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
)

// attach makes a draft usable: it is asked what it is, gets the tables it lacks, and the engine captures its features.
func (m *Manager) attach(ctx context.Context, client tandemv1.DraftServiceClient, log *zap.Logger) (draftInfo, error) {
	digest, err := m.cfg.TablesDigest(ctx)
	if err != nil {
		return draftInfo{}, fmt.Errorf("digest of tables: %w", err)
	}
	engine, err := m.cfg.Engine()
	if err != nil {
		return draftInfo{}, err
	}
	target := engine.Info()
	describe := func() (*tandemv1.GetDraftResponse, error) {
		call, cancel := context.WithTimeout(ctx, attachTimeout)
		defer cancel()
		return client.GetDraft(call, &tandemv1.GetDraftRequest{
			TablesDigest: digest, TokenizerDigest: m.cfg.TokenizerDigest,
			TargetHidden: int32(target.Hidden), TargetLayers: int32(target.Layers), TargetVocab: int32(target.Vocab),
		})
	}
	d, err := describe()
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
		if d, err = describe(); err != nil {
			return draftInfo{}, err
		}
	}
	if !d.Ready {
		return draftInfo{}, errNotReady
	}
	if err := check(d, target); err != nil {
		return draftInfo{}, err
	}
	if err := m.adopt(ctx, engine, client, d, log); err != nil {
		return draftInfo{}, err
	}
	return draftInfo{workerID: d.WorkerId, digest: d.DraftDigest, block: int(d.BlockSize), maxContext: int(d.MaxContext)}, nil
}

// check compares a draft's description with the target.
func check(d *tandemv1.GetDraftResponse, target engineplugin.Info) error {
	switch {
	case d.BlockSize < 2:
		return rpcerr.ModelMismatch.With("draft reports block size %d", d.BlockSize)
	case len(d.CaptureLayers) == 0 || !slices.IsSorted(d.CaptureLayers) || d.CaptureLayers[0] < 0:
		return rpcerr.ModelMismatch.With("draft reports capture layers %v", d.CaptureLayers)
	case int(d.CaptureLayers[len(d.CaptureLayers)-1]) >= target.Layers:
		return rpcerr.ModelMismatch.With("draft captures layer %d, the target has %d layers", d.CaptureLayers[len(d.CaptureLayers)-1], target.Layers)
	case d.MaskToken < 0 || int(d.MaskToken) >= target.Vocab:
		return rpcerr.ModelMismatch.With("draft masks with token %d, the target's vocabulary has %d", d.MaskToken, target.Vocab)
	case d.DraftDigest == "":
		return rpcerr.ModelMismatch.With("draft reports no digest")
	}
	return nil
}

// adopt makes the engine capture what the draft reads, unless it does already. Features of running requests must keep their
// layout, so another draft model is taken up only when nobody uses the present one.
func (m *Manager) adopt(ctx context.Context, engine Engine, client tandemv1.DraftServiceClient, d *tandemv1.GetDraftResponse, log *zap.Logger) error {
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
	if current != nil && current.draftDigest == d.DraftDigest {
		return nil
	}
	if current != nil && inUse {
		return rpcerr.ModelMismatch.With("another draft model is attached (%.12s), this one is %.12s", current.draftDigest, d.DraftDigest)
	}
	next := &Capture{
		Encoding: engineplugin.FeatureFusedBF16, Wire: tandemv1.FeatureEncoding_FEATURE_ENCODING_FUSED_BF16,
		Width: 2 * int(d.FusedWidth), Block: int(d.BlockSize), draftDigest: d.DraftDigest, layers: d.CaptureLayers,
	}
	path, err := m.fuse(ctx, client, d.FuseDigest)
	if err == nil {
		err = engine.LoadFuse(ctx, path)
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
		next.Encoding, next.Wire = engineplugin.FeatureRawBF16, tandemv1.FeatureEncoding_FEATURE_ENCODING_RAW_BF16
		next.Width = 2 * len(d.CaptureLayers) * engine.Info().Hidden
		if err := engine.SetCapture(ctx, d.CaptureLayers); err != nil {
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
	first := true
	for {
		// A buffer of its own per message: the channel borrows it beyond Send.
		chunk := make([]byte, tensorwire.ChunkBytes)
		n, err := io.ReadFull(f, chunk)
		if n > 0 {
			m := &tandemv1.PutTablesRequest{Chunk: chunk[:n]}
			if first {
				m.Digest, m.TotalBytes, first = digest, stat.Size(), false
			}
			if serr := stream.Send(m); serr != nil {
				break // CloseAndRecv has the reason
			}
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if err != nil {
			break
		}
	}
	_, err = stream.CloseAndRecv()
	return err
}

// fuse returns the draft's projection as a file, from the cache when it is there.
func (m *Manager) fuse(ctx context.Context, client tandemv1.DraftServiceClient, digest string) (string, error) {
	if len(digest) != 2*sha256.Size {
		return "", fmt.Errorf("draft reports fuse digest %q", digest)
	}
	if _, err := hex.DecodeString(digest); err != nil {
		return "", fmt.Errorf("draft reports fuse digest %q", digest)
	}
	path := filepath.Join(m.cfg.CacheDir, "fuse-"+digest+".gguf")
	if sum, err := fileDigest(path); err == nil && sum == digest {
		return path, nil
	}
	if err := os.MkdirAll(m.cfg.CacheDir, 0o700); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(m.cfg.CacheDir, "fuse-*.part")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.GetFuse(ctx, &tandemv1.GetFuseRequest{})
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		hash.Write(part.Chunk)
		if _, err := f.Write(part.Chunk); err != nil {
			return "", err
		}
	}
	if sum := hex.EncodeToString(hash.Sum(nil)); sum != digest {
		return "", rpcerr.DataLoss("fuse file has digest %.12s, the draft announced %.12s", sum, digest)
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	return path, os.Rename(f.Name(), path)
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
