package workernode

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// TokenizerDigest identifies the vocabulary of a model file, in hex: SHA-256 over tokens, token types, merges and the
// name of the pre-tokenizer. It is "" for a file without a tokenizer.
func TokenizerDigest(f *gguf.File) (string, error) {
	tokens, ok, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil || !ok {
		return "", err
	}
	merges, _, err := f.Strings("tokenizer.ggml.merges")
	if err != nil {
		return "", err
	}
	types, _, err := f.Int32s("tokenizer.ggml.token_type")
	if err != nil {
		return "", err
	}
	pre, _, err := f.String("tokenizer.ggml.pre")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	var size [8]byte
	text := func(s string) { // with its length, so that no two lists give the same bytes
		binary.LittleEndian.PutUint64(size[:], uint64(len(s)))
		h.Write(size[:])
		h.Write([]byte(s))
	}
	list := func(l []string) {
		binary.LittleEndian.PutUint64(size[:], uint64(len(l)))
		h.Write(size[:])
		for _, s := range l {
			text(s)
		}
	}
	list(tokens)
	list(merges)
	text(pre)
	for _, t := range types {
		binary.LittleEndian.PutUint32(size[:4], uint32(t))
		h.Write(size[:4])
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Registration describes a worker to the gateway, as far as file and engine say it.
func Registration(ctx context.Context, flags *Flags, id string, role tandemv1.Role, f *gguf.File,
	version string) (*tandemv1.Registration, error) {
	digest, err := f.Digest(ctx)
	if err != nil {
		return nil, err
	}
	tokenizer, err := TokenizerDigest(f)
	if err != nil {
		return nil, err
	}
	path := flags.Model
	made := modified(path)
	if files := f.Paths(); len(files) > 0 { // of a folder, which flags may name, the time of change says nothing
		made = modified(files[0])
	}
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return &tandemv1.Registration{
		WorkerId: id, Role: role, Version: version,
		Model:  &tandemv1.ModelInfo{Digest: digest, TokenizerDigest: tokenizer, Path: path, CreatedUnix: made},
		Limits: &tandemv1.Limits{Lanes: int32(flags.Lanes)},
	}, nil
}

// Describe adds what the open engine says. A worker that cuts prompts has a contract id of its own, see Contract.
func Describe(r *tandemv1.Registration, info engine.Info) {
	r.Backend, r.Device = info.Backend, info.Device
	m := r.Model
	r.Numerics, r.Contract = info.Numerics, Contract(m.Digest, info, "")
	m.Name, m.Arch = info.Name, info.Arch
	m.NLayers, m.LayerFirst, m.LayerLast = int32(info.Layers), int32(info.LayerFirst), int32(info.LayerLast)
	m.Hidden, m.Vocab = int32(info.Hidden), int32(info.Vocab)
	m.CaptureLayers, m.BlockSize = info.CaptureLayers, int32(info.BlockSize)
	r.Limits.Lanes = int32(info.MaxSequences)
	r.Limits.MaxContext, r.Limits.MaxTreeRows = int32(info.MaxContext), int32(info.MaxTreeRows)
	if r.Role == tandemv1.Role_ROLE_TARGET {
		r.Limits.KvTokens = int64(info.KVPositions)
	}
	r.Stages = nil
	for _, s := range info.Stages {
		r.Stages = append(r.Stages, &tandemv1.StagePlace{Device: s.Device, LayerFirst: int32(s.First),
			LayerLast: int32(s.Last), Rows: string(s.Rows)})
	}
}

// RememberDigests keeps digests of model files in the cache folder, so that a model is hashed once and not at every
// start. flag is the worker's --cache-dir. A folder that cannot be written is reported once and changes nothing else.
func RememberDigests(flag string, log *zap.Logger) {
	dir, err := CacheDir(flag)
	if err != nil {
		log.Warn("digests of model files are not kept, the model is hashed at every start",
			zap.NamedError(telemetry.KeyErr, err))
		return
	}
	gguf.RememberDigests(filepath.Join(dir, "digests"), func(err error) {
		log.Warn("the model is hashed at every start", zap.NamedError(telemetry.KeyErr, err))
	})
}

// modified is the file's time of change in seconds, which stands for when the model was made; 0 when it cannot be read.
func modified(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.ModTime().Unix()
}

// Trained is the context that the model of a file was trained for, in tokens; 0 when the file does not say.
func Trained(f *gguf.File) int {
	m, err := f.Model()
	if err != nil {
		return 0
	}
	return m.Context
}

// CacheDir is where a worker keeps files that it makes or receives: the flag's value, or a folder in the user's cache.
func CacheDir(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("--cache-dir: %w", err)
	}
	return filepath.Join(dir, "tandem"), nil
}

// Host returns the opener of engine processes.
func (f *Flags) Host(log *zap.Logger) (*host.Host, error) {
	program, library, err := f.EnginePaths()
	if err != nil {
		return nil, err
	}
	return host.NewHost(host.HostConfig{Program: program, Library: library,
		Logger: telemetry.HCLog(log.Named("engine")), HangLimit: f.HangLimit(), Traces: f.traces,
		Env: []string{host.OTLPVariable + "=" + f.OTLPEndpoint, host.WorkerVariable + "=" + f.WorkerID}})
}
