// Package native binds libtandem_<backend>.so, whose border is native/include/tandem/engine.h, without cgo.
//
// Memory: everything that C sees is on the Go heap, which does not move, and stays referenced by the caller's variables
// until the call has returned. C keeps no pointer beyond a call. Callbacks run on the goroutine that is inside the
// call.
package native

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"
	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// LogFunc receives lines of a native library. Levels are 0 debug, 1 info, 2 warn, 3 error.
type LogFunc func(level int, text string)

// symbols of the library; the names of the fields are those of the header without tnd_.
type symbols struct {
	abiVersion, open, close, lastError, getInfo, memory, stats, cancel          uintptr
	sequenceCreate, sequenceFree, sequenceLength, sequenceTruncate              uintptr
	sequenceFork, sequenceSampler                                               uintptr
	snapshotCreate, snapshotRestore, snapshotDemote, snapshotFree               uintptr
	snapshotDescribe, snapshotRead                                              uintptr
	snapshotBegin, snapshotWrite, snapshotFinish                                uintptr
	sequenceExportSize, sequenceExport, sequenceImport                          uintptr
	stepRun, captureSet, fuseLoad, fuse, draftAppend, draftPropose, scoreTarget uintptr
}

func (s *symbols) table() map[string]*uintptr {
	return map[string]*uintptr{
		"tnd_abi_version": &s.abiVersion, "tnd_open": &s.open, "tnd_close": &s.close, "tnd_last_error": &s.lastError,
		"tnd_get_info": &s.getInfo, "tnd_memory": &s.memory, "tnd_stats": &s.stats, "tnd_cancel": &s.cancel,
		"tnd_sequence_create": &s.sequenceCreate, "tnd_sequence_fork": &s.sequenceFork,
		"tnd_sequence_free":   &s.sequenceFree,
		"tnd_sequence_length": &s.sequenceLength, "tnd_sequence_truncate": &s.sequenceTruncate,
		"tnd_sequence_sampler": &s.sequenceSampler, "tnd_snapshot_create": &s.snapshotCreate,
		"tnd_snapshot_restore": &s.snapshotRestore, "tnd_snapshot_demote": &s.snapshotDemote,
		"tnd_snapshot_free":        &s.snapshotFree,
		"tnd_snapshot_describe":    &s.snapshotDescribe,
		"tnd_snapshot_read":        &s.snapshotRead,
		"tnd_snapshot_begin":       &s.snapshotBegin,
		"tnd_snapshot_write":       &s.snapshotWrite,
		"tnd_snapshot_finish":      &s.snapshotFinish,
		"tnd_sequence_export_size": &s.sequenceExportSize, "tnd_sequence_export": &s.sequenceExport,
		"tnd_sequence_import": &s.sequenceImport, "tnd_step_run": &s.stepRun,
		"tnd_capture_set": &s.captureSet, "tnd_fuse_load": &s.fuseLoad, "tnd_fuse": &s.fuse,
		"tnd_draft_append": &s.draftAppend, "tnd_draft_propose": &s.draftPropose, "tnd_score": &s.scoreTarget,
	}
}

// Library is a loaded native library. It implements engine.Opener and stays loaded for the life of the process.
type Library struct {
	path string
	sym  symbols
	log  LogFunc
}

// Load opens a library, finds every function of the header and checks the version of the ABI. log may be nil.
func Load(path string, log LogFunc) (*Library, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("load engine library: %w", err)
	}
	l := &Library{path: path, log: log}
	table := l.sym.table()
	for _, name := range sortedKeys(table) {
		if *table[name], err = purego.Dlsym(handle, name); err != nil {
			return nil, fmt.Errorf("engine library %s lacks %s: %w", path, name, err)
		}
	}
	if v := l.ABIVersion(); v != abiVersion {
		return nil, fmt.Errorf("engine library %s speaks version %d of the ABI, this program version %d", path, v, abiVersion)
	}
	return l, nil
}

func sortedKeys(m map[string]*uintptr) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// ABIVersion asks the library.
func (l *Library) ABIVersion() uint32 {
	v, _, _ := purego.SyscallN(l.sym.abiVersion)
	return uint32(v)
}

// Path of the library.
func (l *Library) Path() string { return l.path }

// hooks are the receivers of one tnd_open's callbacks. C holds a key instead of a pointer.
type hooks struct {
	log      LogFunc
	progress engine.Progress
}

var (
	hookTable sync.Map // uintptr → *hooks
	hookKeys  atomic.Uintptr
	// C function pointers cannot be freed, so there is one of each for all engines.
	callbacks = sync.OnceValues(func() (log, progress uintptr) {
		log = purego.NewCallback(func(user uintptr, level int32, text *byte) uintptr {
			if h, ok := hookTable.Load(user); ok && h.(*hooks).log != nil {
				h.(*hooks).log(int(level), goString(text))
			}
			return 0
		})
		progress = purego.NewCallback(func(user uintptr, done, total uint64) uintptr {
			if h, ok := hookTable.Load(user); ok && h.(*hooks).progress != nil {
				h.(*hooks).progress(done, total)
			}
			return 0
		})
		return log, progress
	})
)

// errorBytes is room for the text of a failed tnd_open.
const errorBytes = 4 << 10

// OpenTarget implements engine.Opener, as do the methods below. Loading cannot be interrupted: when ctx ends meanwhile,
// the engine is closed again.
func (l *Library) OpenTarget(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	e, err := l.open(ctx, engine.RoleTarget, o, p)
	if err != nil {
		return nil, err
	}
	return &target{sequences{e}}, nil
}

// OpenDraft opens a draft.
func (l *Library) OpenDraft(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Draft, error) {
	e, err := l.open(ctx, engine.RoleDraft, o, p)
	if err != nil {
		return nil, err
	}
	return &draft{sequences{e}}, nil
}

// OpenScorer opens a scorer.
func (l *Library) OpenScorer(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Scorer, error) {
	e, err := l.open(ctx, engine.RoleScore, o, p)
	if err != nil {
		return nil, err
	}
	return &scorer{e}, nil
}

func (l *Library) open(ctx context.Context, role engine.Role, o engine.OpenOptions,
	progress engine.Progress) (*nativeEngine, error) {
	if err := ctx.Err(); err != nil {
		return nil, rpcerr.From(err)
	}
	for name, v := range map[string]int{
		"threads": o.Threads, "max_sequences": o.MaxSequences, "max_context": o.MaxContext, "max_tree_rows": o.MaxTreeRows,
		"max_batch_rows": o.MaxBatchRows, "layer_first": o.LayerFirst, "layer_last": o.LayerLast, "max_top_k": o.MaxTopK,
		"kv_positions": o.KVPositions, "attention_window": o.AttentionWindow,
	} {
		if int(int32(v)) != v {
			return nil, rpcerr.InvalidArgument(name, "%d is out of range", v)
		}
	}
	key := hookKeys.Add(1)
	hookTable.Store(key, &hooks{log: l.log, progress: progress})
	logCallback, progressCallback := callbacks()
	c := &cOpenOptions{
		StructSize: uint32(unsafe.Sizeof(cOpenOptions{})), Role: uint32(role),
		ModelPath: cString(o.ModelPath), TablesPath: cString(o.TablesPath), Device: cString(o.Device),
		MemoryCapBytes: o.MemoryCapBytes, Threads: int32(o.Threads), MaxSequences: int32(o.MaxSequences),
		MaxContext: int32(o.MaxContext), MaxTreeRows: int32(o.MaxTreeRows), MaxBatchRows: int32(o.MaxBatchRows),
		KVTypeK: o.KVTypeK, KVTypeV: o.KVTypeV, LayerFirst: int32(o.LayerFirst), LayerLast: int32(o.LayerLast),
		MaxTopK: int32(o.MaxTopK), KVPositions: int32(o.KVPositions), HostCapBytes: o.HostCapBytes,
		AttentionWindow: int32(o.AttentionWindow),
		Log:             logCallback, Progress: progressCallback, User: key,
	}
	handle, message := new(uintptr), make([]byte, errorBytes)
	r, _, _ := purego.SyscallN(l.sym.open, uintptr(unsafe.Pointer(c)), uintptr(unsafe.Pointer(handle)),
		uintptr(unsafe.Pointer(&message[0])), errorBytes)
	runtime.KeepAlive(c)
	if code := codes.Code(int32(r)); code != codes.OK {
		hookTable.Delete(key)
		return nil, failure(code, text(message))
	}
	e := newEngine(l, *handle, key)
	if err := e.refresh(); err != nil {
		_ = e.Close()
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		_ = e.Close()
		return nil, rpcerr.From(err)
	}
	return e, nil
}

// failure makes an error of a status and its text. A text that begins with the name of a field, as those of
// TND_INVALID_ARGUMENT do, names it in the error as well.
func failure(code codes.Code, message string) error {
	if message == "" {
		message = "the engine gave no reason"
	}
	switch code {
	case codes.DataLoss:
		return rpcerr.DamagedState.With("%s", message)
	case codes.InvalidArgument:
		e := rpcerr.FromCode(code, message)
		for i, c := range []byte(message) {
			switch {
			case c >= 'a' && c <= 'z', c == '_', c == '.', c >= '0' && c <= '9', c == '[', c == ']':
				continue
			case i > 0 && (c == ':' || c == ' '):
				return e.WithViolation(message[:i], message)
			}
			break
		}
		return e
	}
	return rpcerr.FromCode(code, message)
}
