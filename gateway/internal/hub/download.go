package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/transfer"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// partSuffix ends the names of files that are not complete, stateSuffix those of what is known of them.
const (
	partSuffix  = ".part"
	stateSuffix = ".part.json"
)

// Download says how a file is fetched.
type Download struct {
	Client         *Client
	Store          Store
	Repo, Revision string
	// Connections is the number of ranges that are fetched at the same time.
	Connections int
	// Progress gets the bytes of the file that are there, as they come; Checking is called before they are hashed.
	Progress func(done int64)
	Checking func()

	piece int64                           // bytes of a range; 0 = pieceBytes
	free  func(dir string) (int64, error) // bytes that the disk has left; nil asks it
}

// pieceBytes is the size of a range: large enough for the connection to become fast, small enough that several
// connections end at about the same time.
const pieceBytes = 64 << 20

// ErrChanged means that the hub has another file than the one that was begun.
var ErrChanged = errors.New("the file changed on the hub while it was fetched")

// state is what a part file holds. What a crash makes of it is found by the hash.
type state struct {
	Size      int64   `json:"size"`
	Hash      string  `json:"hash"`      // that the hub lists
	Validator string  `json:"validator"` // ETag of the bytes
	Piece     int64   `json:"piece"`
	Done      []int64 `json:"done"` // bytes of each piece
}

// Fetch gets one file, unless it is there, and returns its path. What an earlier call has fetched is used.
func (d *Download) Fetch(ctx context.Context, file File) (string, error) {
	path := d.Store.Path(d.Repo, file.Path)
	if info, err := os.Stat(path); err == nil {
		if info.Size() != file.Size {
			return "", fmt.Errorf("%s is there with %d bytes, on the hub it has %d: remove it to fetch that one", path,
				info.Size(), file.Size)
		}
		d.progress(file.Size)
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	part, err := lockPart(path + partSuffix)
	if err != nil {
		return "", err
	}
	defer part.Close()
	if _, err := os.Stat(path); err == nil { // the one that had the lock has finished
		os.Remove(part.Name())
		return path, nil
	}
	f := &fetch{Download: d, file: file, part: part, statePath: path + stateSuffix}
	if err := f.run(ctx); err != nil {
		return "", fmt.Errorf("%s: %w", file.Path, err)
	}
	if err := os.Rename(part.Name(), path); err != nil {
		return "", err
	}
	os.Remove(f.statePath)
	return path, syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// lockPart opens a part file that nobody else writes.
func lockPart(path string) (*os.File, error) {
	for {
		part, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(part.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			part.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("%s: another tandem pull fetches this file", path)
			}
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		// Whoever had the lock may have given the file its name.
		mine, err1 := part.Stat()
		there, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(mine, there) {
			return part, nil
		}
		part.Close()
	}
}

func (d *Download) progress(done int64) {
	if d.Progress != nil {
		d.Progress(done)
	}
}

// fetch is a Download of one file.
type fetch struct {
	*Download
	file      File
	part      *os.File
	statePath string

	done atomic.Int64 // bytes of all pieces

	mu    sync.Mutex // guards the rest
	state state
	saved time.Time
}

func (f *fetch) run(ctx context.Context) error {
	f.load()
	if err := f.room(); err != nil {
		return err
	}
	err := f.pieces(ctx)
	if errors.Is(err, errNoRanges) {
		f.reset()
		err = f.wholeFile(ctx)
	}
	if err != nil {
		if errors.Is(err, ErrChanged) {
			f.reset()
		}
		return errors.Join(err, f.keep())
	}
	if f.Checking != nil {
		f.Checking()
	}
	if err := f.part.Sync(); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		f.reset()
		return errors.Join(err, f.keep())
	}
	return nil
}

func (f *fetch) hashName() string { return f.file.SHA256 + "/" + f.file.Blob }

// load reads the state of an earlier call; one of another file is dropped.
func (f *fetch) load() {
	data, err := os.ReadFile(f.statePath)
	var s state
	info, statErr := f.part.Stat()
	usable := err == nil && statErr == nil && json.Unmarshal(data, &s) == nil && s.Size == f.file.Size &&
		s.Hash == f.hashName() && s.Piece > 0 && int64(len(s.Done)) == (s.Size+s.Piece-1)/s.Piece
	total := int64(0)
	for i, n := range s.Done {
		usable = usable && n >= 0 && n <= min(s.Piece, s.Size-int64(i)*s.Piece) &&
			(n == 0 || int64(i)*s.Piece+n <= info.Size())
		total += n
	}
	if !usable {
		f.reset()
		return
	}
	f.state = s
	f.done.Store(total)
	f.progress(total)
}

// reset forgets what was fetched.
func (f *fetch) reset() {
	piece := f.piece
	if piece == 0 {
		piece = pieceBytes
	}
	f.mu.Lock()
	f.state = state{Size: f.file.Size, Hash: f.hashName(), Piece: piece, Done: make([]int64, (f.file.Size+piece-1)/piece)}
	f.mu.Unlock()
	f.done.Store(0)
	f.progress(0)
	_ = f.part.Truncate(0) // what stays is written over
}

// keep writes the state for the next call, or removes what holds no bytes.
func (f *fetch) keep() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done.Load() == 0 {
		os.Remove(f.statePath)
		return os.Remove(f.part.Name())
	}
	return f.saveLocked()
}

func (f *fetch) saveLocked() error {
	f.saved = time.Now()
	data, err := json.Marshal(f.state)
	if err != nil {
		return err
	}
	next := f.statePath + ".new"
	if err := os.WriteFile(next, data, 0o644); err != nil {
		os.Remove(next)
		return err
	}
	return os.Rename(next, f.statePath)
}

// room checks that the disk has room for the rest, and takes it.
func (f *fetch) room() error {
	free := f.free
	if free == nil {
		free = transfer.FreeBytes
	}
	dir := filepath.Dir(f.part.Name())
	left, err := free(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	var allocated int64
	var stat unix.Stat_t
	if unix.Fstat(int(f.part.Fd()), &stat) == nil {
		allocated = min(stat.Blocks*512, f.file.Size)
	}
	if need := f.file.Size - allocated; need > left {
		return fmt.Errorf("needs %s more on the disk of %s, which has %s left", config.Size(need).Human(),
			dir, config.Size(max(left, 0)).Human())
	}
	if f.file.Size > 0 {
		err = unix.Fallocate(int(f.part.Fd()), 0, 0, f.file.Size)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
			return fmt.Errorf("%s for %s on the disk: %w", config.Size(f.file.Size).Human(), f.part.Name(), err)
		}
	}
	return nil
}

// pieces fetches the missing pieces, several at a time.
func (f *fetch) pieces(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(f.Connections, 1))
	first := true
	for i := range f.state.Done {
		if int64(i)*f.state.Piece+f.doneOf(i) >= min(int64(i+1)*f.state.Piece, f.file.Size) {
			continue
		}
		one := func() error {
			return f.Client.retry(ctx, func() (bool, error) {
				before := f.doneOf(i)
				err := f.fetchPiece(ctx, i)
				return f.doneOf(i) > before, err
			})
		}
		if first {
			// The first answer shows whether there are ranges, and which bytes these are.
			if err := one(); err != nil {
				return err
			}
			first = false
			continue
		}
		group.Go(one)
	}
	return group.Wait()
}

func (f *fetch) doneOf(i int) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state.Done[i]
}

// errNoRanges means that a server sends whole files only.
var errNoRanges = errors.New("the server ignores ranges")

var contentRange = regexp.MustCompile(`^bytes ([0-9]+)-([0-9]+)/([0-9]+)$`)

// fetchPiece tries once to fetch what is missing of a piece.
func (f *fetch) fetchPiece(ctx context.Context, i int) error {
	start := int64(i)*f.state.Piece + f.doneOf(i)
	end := min(int64(i+1)*f.state.Piece, f.file.Size)
	response, err := f.open(ctx, fmt.Sprintf("bytes=%d-%d", start, end-1))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusPartialContent:
	case http.StatusOK:
		return &finalError{errNoRanges}
	case http.StatusRequestedRangeNotSatisfiable:
		return &finalError{ErrChanged}
	default:
		return f.Client.refuse(response, f.Repo, "asking for a part")
	}
	found := contentRange.FindStringSubmatch(response.Header.Get("Content-Range"))
	if found == nil {
		return fmt.Errorf("the server sends a part without saying which (Content-Range %q)",
			response.Header.Get("Content-Range"))
	}
	from, _ := strconv.ParseInt(found[1], 10, 64)
	total, _ := strconv.ParseInt(found[3], 10, 64)
	switch {
	case total != f.file.Size:
		return &finalError{ErrChanged}
	case from != start:
		return fmt.Errorf("the server sends bytes from %d, asked for %d", from, start)
	}
	if err := f.validate(response); err != nil {
		return err
	}
	return f.copy(response.Body, start, end, i)
}

// validate compares the ETag with that of the other pieces.
func (f *fetch) validate(response *http.Response) error {
	tag := response.Header.Get("ETag")
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state.Validator == "" {
		f.state.Validator = tag
	}
	if f.state.Validator != tag {
		return &finalError{ErrChanged}
	}
	return nil
}

// open asks for the file, or a range of it. The caller closes the body of the answer.
func (f *fetch) open(ctx context.Context, byteRange string) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	header := http.Header{}
	if byteRange != "" {
		header.Set("Range", byteRange)
	}
	response, err := f.Client.get(ctx, f.Client.address(f.Repo, f.Revision, f.file.Path), header)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	// A connection that is open and dead would wait for ever.
	timer := time.AfterFunc(f.Client.silence, func() {
		cancel(fmt.Errorf("the server sent nothing for %v", f.Client.silence))
	})
	response.Body = &watchedBody{ReadCloser: response.Body, ctx: ctx, cancel: cancel, timer: timer,
		silence: f.Client.silence}
	return response, nil
}

// watchedBody puts the end of a silent connection off as long as it is read from.
type watchedBody struct {
	io.ReadCloser
	ctx     context.Context
	cancel  context.CancelCauseFunc
	timer   *time.Timer
	silence time.Duration
}

// Close ends the request.
func (b *watchedBody) Close() error {
	b.timer.Stop()
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.timer.Reset(b.silence)
	}
	if err != nil && err != io.EOF && context.Cause(b.ctx) != nil {
		err = context.Cause(b.ctx)
	}
	return n, err
}

// copy writes what comes to the bytes from start to end, which are of piece i.
func (f *fetch) copy(body io.Reader, start, end int64, i int) error {
	b := make([]byte, 1<<18)
	for at := start; at < end; {
		n, err := body.Read(b[:min(int64(len(b)), end-at)])
		if n > 0 {
			if _, err := f.part.WriteAt(b[:n], at); err != nil {
				return &finalError{fmt.Errorf("%s: %w", f.part.Name(), errors.Unwrap(err))}
			}
			at += int64(n)
			f.progress(f.done.Add(int64(n)))
			if err := f.note(i, int64(n)); err != nil {
				return &finalError{err}
			}
		}
		if err == io.EOF && at < end {
			return io.ErrUnexpectedEOF
		}
		if err != nil && err != io.EOF {
			return err
		}
	}
	return nil
}

// note counts bytes of a piece; the state is written every other second.
func (f *fetch) note(i int, n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state.Done[i] += n
	if time.Since(f.saved) < 2*time.Second {
		return nil
	}
	return f.saveLocked()
}

// wholeFile fetches the whole file over one connection, from the start each time that it breaks.
func (f *fetch) wholeFile(ctx context.Context) error {
	return f.Client.retry(ctx, func() (bool, error) {
		f.reset()
		response, err := f.open(ctx, "")
		if err != nil {
			return false, err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return false, f.Client.refuse(response, f.Repo, "asking for the file")
		}
		if response.ContentLength >= 0 && response.ContentLength != f.file.Size {
			return false, &finalError{ErrChanged}
		}
		for i := range f.state.Done {
			start := int64(i) * f.state.Piece
			if err := f.copy(response.Body, start, min(start+f.state.Piece, f.file.Size), i); err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

// check compares the hash of what is there with that of the hub's list.
func (f *fetch) check() error {
	if err := f.part.Truncate(f.file.Size); err != nil {
		return err
	}
	var h hash.Hash
	want := f.file.SHA256
	if want != "" {
		h = sha256.New()
	} else {
		// Small files are no LFS objects: git names them by this.
		h, want = sha1.New(), f.file.Blob
		fmt.Fprintf(h, "blob %d\x00", f.file.Size)
	}
	if _, err := f.part.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := io.Copy(h, f.part); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); !strings.EqualFold(got, want) {
		return fmt.Errorf("its hash is %s, the hub says %s: what was fetched is dropped", got, want)
	}
	return nil
}
