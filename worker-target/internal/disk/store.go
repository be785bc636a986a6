package disk

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/worker-target/internal/eviction"
)

// Config of a Store.
type Config struct {
	Dir    string
	Budget uint64 // bytes of all files
	// Owner is the digest of the model: a folder that a worker of the same model left is taken first.
	Owner string
	Log   *zap.Logger
}

// Stats of a store; counts are since its start.
type Stats struct {
	Lookups   uint64
	Hits      uint64 // states that were read back
	Tokens    uint64 // of hits
	Writes    uint64 // states that were written
	Refusals  uint64 // states for which there was no room, or that could not be written
	Evictions uint64
	Damaged   uint64 // files that were not what they should be, deleted
	States    int
	Bytes     uint64
}

// node is a state in the index, or what descendants need of one.
type node struct {
	id, parent ID
	length     int
	kv, state  uint64 // bytes of its files, 0 = there is none
	number     uint64 // of its tokens in their isolation, services/prefixhash; 0 = not known
	children   int
	used       time.Time
	pins       int // reads and writes that need its files
}

// Store keeps states in files. It is safe for concurrent use.
type Store struct {
	cfg     Config
	folder  *folder
	scanned chan struct{} // closed when the index is there
	group   sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	nodes   map[ID]*node
	lengths map[int]int // states that can be restored, by length
	bytes   uint64
	version uint64    // rises when a state comes or goes
	retry   time.Time // nothing is written before, after a write that failed
	stats   Stats
}

// Open locks a folder and reads its index in the background.
func Open(cfg Config) (*Store, error) {
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	f, err := takeFolder(cfg.Dir, cfg.Owner)
	if err != nil {
		return nil, err
	}
	s := &Store{
		cfg: cfg, folder: f, scanned: make(chan struct{}), nodes: map[ID]*node{}, lengths: map[int]int{},
	}
	s.group.Go(s.scan)
	return s, nil
}

// Close ends the use of the folder. No other call may run or follow.
func (s *Store) Close() {
	s.group.Wait()
	s.folder.close()
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	for _, n := range s.lengths {
		out.States += n
	}
	out.Bytes = s.bytes
	return out
}

// scan makes the index of the names of files. Files that nobody finishes or needs are deleted.
func (s *Store) scan() {
	defer close(s.scanned)
	start := time.Now()
	entries, err := os.ReadDir(s.folder.path)
	if err != nil {
		s.cfg.Log.Warn("the folder of states cannot be read", zap.NamedError(telemetry.KeyErr, err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, temporaryPrefix) || isOther(name) {
			_ = os.Remove(filepath.Join(s.folder.path, name))
			continue
		}
		p, ok := parseName(name)
		info, err := entry.Info()
		if !ok || err != nil {
			continue
		}
		n := s.nodes[p.id]
		if n == nil {
			n = &node{id: p.id, length: p.length, used: info.ModTime()}
			s.nodes[p.id] = n
		}
		switch {
		case p.state && n.state > 0: // one without its number came first
			_ = os.Remove(filepath.Join(s.folder.path, name))
			continue
		case p.state:
			n.state, n.number = uint64(info.Size()), p.number
		case n.kv > 0: // one with another parent came first
			_ = os.Remove(filepath.Join(s.folder.path, name))
			continue
		default:
			n.kv, n.parent = uint64(info.Size()), p.parent
		}
		if info.ModTime().After(n.used) {
			n.used = info.ModTime()
		}
		s.bytes += uint64(info.Size())
	}
	s.link()
	s.shrink(0)
	s.version++
	s.cfg.Log.Info("states of prompts on disk", zap.String(telemetry.KeyPath, s.folder.path),
		zap.Int("states", len(s.nodes)), zap.Uint64("bytes", s.bytes),
		zap.Int64(telemetry.KeyDurationMS, time.Since(start).Milliseconds()))
}

// link connects states with their parents and removes what is of no use: states without pages, pages without their
// parent's, and those that no state needs. The caller holds mu.
func (s *Store) link() {
	byLength := make([]*node, 0, len(s.nodes))
	for _, n := range s.nodes {
		byLength = append(byLength, n)
	}
	slices.SortFunc(byLength, func(a, b *node) int { return a.length - b.length })
	for _, n := range byLength {
		if n.state > 0 {
			s.lengths[n.length]++
		}
	}
	for _, n := range byLength {
		parent := s.nodes[n.parent]
		if n.kv == 0 || n.parent != (ID{}) && (parent == nil || parent.length >= n.length) {
			s.discard(n)
			continue
		}
		if parent != nil {
			parent.children++
		}
	}
	for _, n := range slices.Backward(byLength) {
		s.prune(n)
	}
}

// discard removes the files of a node that nothing in the index depends on. The caller holds mu.
func (s *Store) discard(n *node) {
	s.dropState(n)
	if n.kv > 0 {
		_ = os.Remove(s.kvPath(n))
		s.bytes -= n.kv
		n.kv = 0
	}
	delete(s.nodes, n.id)
}

// dropState removes the recurrent state of a node. The caller holds mu.
func (s *Store) dropState(n *node) {
	if n.state == 0 {
		return
	}
	_ = os.Remove(s.statePath(n))
	s.bytes -= n.state
	n.state = 0
	s.version++
	if s.lengths[n.length]--; s.lengths[n.length] <= 0 {
		delete(s.lengths, n.length)
	}
}

// prune removes a node that is neither a state nor needed by one, and then its ancestors for which that holds. The
// caller holds mu.
func (s *Store) prune(n *node) {
	for n != nil && s.nodes[n.id] == n && n.state == 0 && n.children == 0 && n.pins == 0 {
		parent := s.nodes[n.parent]
		s.discard(n)
		if parent != nil {
			parent.children--
		}
		n = parent
	}
}

// fell removes a node with all that depends on it, pinned or not: reads of them fail. The caller holds mu.
func (s *Store) fell(n *node) {
	if s.nodes[n.id] != n {
		return
	}
	for _, other := range s.nodes {
		if other.parent == n.id {
			s.fell(other)
		}
	}
	if s.nodes[n.id] != n { // it went with the last that needed it
		return
	}
	parent := s.nodes[n.parent]
	s.discard(n)
	if parent != nil {
		parent.children--
		s.prune(parent)
	}
}

func (s *Store) kvPath(n *node) string {
	return filepath.Join(s.folder.path, kvName(n.length, n.id, n.parent))
}

func (s *Store) statePath(n *node) string {
	return filepath.Join(s.folder.path, stateName(n.length, n.id, n.number))
}

// shrink removes states until so many more bytes fit, and reports whether they do. The caller holds mu.
func (s *Store) shrink(bytes uint64) bool {
	for s.bytes+bytes > s.cfg.Budget {
		n := s.least()
		if n == nil {
			return false
		}
		s.dropState(n)
		s.prune(n)
		s.stats.Evictions++
	}
	return true
}

// least returns the state of the least value that is not in use. The caller holds mu.
func (s *Store) least() *node {
	worst := eviction.NewLeast[*node]()
	for _, n := range s.nodes {
		if n.state == 0 || n.pins > 0 {
			continue
		}
		worst.Offer(n, eviction.State{Gain: n.length - s.before(n), Used: n.used})
	}
	return worst.Worst()
}

// before is the length of the longest state above n that can be restored, 0 if there is none. The caller holds mu.
func (s *Store) before(n *node) int {
	for n = s.nodes[n.parent]; n != nil; n = s.nodes[n.parent] {
		if n.state > 0 {
			return n.length
		}
	}
	return 0
}

// Held is a state that can be restored.
type Held struct {
	Number uint64 // of services/prefixhash
	Tokens int
	Used   time.Time
}

// Held lists the states whose number is known, those first that were used last, and a version that rises when one comes
// or goes. Before the index is there it lists none.
func (s *Store) Held() (list []Held, version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if n.state > 0 && n.number != 0 {
			list = append(list, Held{Number: n.number, Tokens: n.length, Used: n.used})
		}
	}
	slices.SortFunc(list, func(a, b Held) int { return b.Used.Compare(a.Used) })
	return list, s.version
}

// Version is that of Held.
func (s *Store) Version() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Longest is the length of the state that Find would return, 0 when there is none or the index is not there yet. It is
// no look-up.
func (s *Store) Longest(space string, tokens []int32, least int, fits func(length int) bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.find(space, tokens, least, fits); n != nil {
		return n.length
	}
	return 0
}

// ready waits until the index is there.
func (s *Store) ready(ctx context.Context) error {
	select {
	case <-s.scanned:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// find returns the longest state that tokens begin with, that is longer than least and fits. The caller holds mu.
func (s *Store) find(space string, tokens []int32, least int, fits func(length int) bool) (best *node) {
	lengths := make([]int, 0, len(s.lengths))
	for n := range s.lengths {
		if n > least && n <= len(tokens) && fits(n) {
			lengths = append(lengths, n)
		}
	}
	slices.Sort(lengths)
	d, at := newDigest(digestOf(space)), 0
	for _, n := range lengths {
		d.add(tokens[at:n])
		at = n
		if found := s.nodes[d.id()]; found != nil && found.length == n && found.state > 0 {
			best = found
		}
	}
	return best
}

// chain returns a node and its ancestors, the oldest last. The caller holds mu.
func (s *Store) chain(n *node) (all []*node) {
	for ; n != nil; n = s.nodes[n.parent] {
		all = append(all, n)
	}
	return all
}

// pin keeps the files of nodes until unpin. The caller holds mu.
func pin(nodes []*node) {
	for _, n := range nodes {
		n.pins++
	}
}

// unpin lets go of nodes and removes those that nothing needs any more. The caller holds mu.
func (s *Store) unpin(nodes []*node) {
	for _, n := range nodes {
		n.pins--
	}
	for _, n := range nodes {
		s.prune(n)
	}
}

// use notes that a state was asked for. The caller holds mu. The time lasts in that of the file.
func (s *Store) use(n *node) {
	n.used = time.Now()
	_ = os.Chtimes(s.statePath(n), time.Time{}, n.used)
}

// spoil removes a file that is not what it should be: pages with all that depends on them, or a state alone.
func (s *Store) spoil(n *node, kv bool, err error) {
	path := s.statePath(n)
	if kv {
		path = s.kvPath(n)
	}
	s.cfg.Log.Warn("a damaged file of states is deleted", zap.String(telemetry.KeyPath, path),
		zap.NamedError(telemetry.KeyErr, err))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Damaged++
	if kv {
		s.fell(n)
		return
	}
	s.dropState(n)
	s.prune(n)
}
