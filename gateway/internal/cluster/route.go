package cluster

import (
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/prefixhash"
)

const (
	// pageTokens is the unit in which the pool notes prompts that it has sent to workers; tailTokens at their end are left
	// out: templates write another end once an answer follows.
	pageTokens, tailTokens = 64, 16
	// believed is how long the pool believes that a worker holds a prompt that it got: until heartbeats must have said so.
	believed = 30 * time.Second
	// mostSent and mostSessions bound what is remembered.
	mostSent, mostSessions = 1024, 4096
	// Costs that differ by less do not decide: a share of the smaller one, or a time.
	alikeShare, alikeTime = 0.05, 2 * time.Millisecond
	// peerTokens is how many tokens more than the chosen worker another one must hold to be named to it. Fewer are read
	// about as soon as they are asked for.
	peerTokens = 256
	// mostSending is how many requests at a time are routed as if they could fetch from one worker: it sends no more
	// states at a time (package peers of worker-target).
	mostSending = 2
	// defaultToken and defaultRequest are the times of a prompt token and of an answer where none was measured.
	defaultToken, defaultRequest = time.Millisecond, time.Second
)

// Routed counts how requests found their workers.
type Routed struct {
	Prefix  uint64 // the worker was believed to hold a begin of the prompt
	Peer    uint64 // it was expected to fetch a longer begin from another worker
	Session uint64 // nobody was, the session was there before
	Load    uint64
	// Expected are prompt tokens that workers were believed to hold, Hit those of them that they had.
	Expected, Hit uint64
	// Named are requests whose worker was told of another one that holds clearly more of the prompt.
	Named uint64
}

// add adds a count to those of the pool and of a worker.
func (p *Pool) add(w *worker, count func(*Routed)) {
	count(&p.routes.stats)
	count(&w.routed)
}

// routes is what the pool knows beside heartbeats; guarded by Pool.mu.
type routes struct {
	stats    Routed
	sent     []sent // oldest first
	sessions map[string]string
}

// sent is a prompt that a worker got.
type sent struct {
	digest uint64
	tokens int
	worker string
	at     time.Time
}

// known is what is known of a demand's prompt.
type known struct {
	held   map[string]int // tokens by worker
	disk   map[string]int // of them those that are read from disk
	named  map[string]int // those that a heartbeat names: others may still be read there
	digest uint64         // of the first tokens
	tokens int
}

// pace is how fast a worker reads and answers, by its own counters.
type pace struct {
	prompt, prefill, requests, decode float64 // counters at the last look
	fetched, fetching                 float64
	token, request                    time.Duration
	fetch                             time.Duration // of a token that is fetched
}

// observe looks at the counters of a heartbeat.
func (s *pace) observe(counters map[string]float64) {
	prompt, prefill := counters["prompt_tokens"], counters["prefill_seconds"]
	requests, decode := counters["requests"], counters["decode_seconds"]
	// Few tokens say little about one: a step costs something whatever its rows.
	if n, took := prompt-s.prompt, prefill-s.prefill; n >= 2*pageTokens && took > 0 {
		s.token = mean(s.token, took/n)
		s.prompt, s.prefill = prompt, prefill
	}
	if n, took := requests-s.requests, decode-s.decode; n >= 1 && took > 0 {
		s.request = mean(s.request, took/n)
		s.requests, s.decode = requests, decode
	}
	fetched, fetching := counters["peer_fetched_tokens"], counters["peer_fetch_seconds"]
	if n, took := fetched-s.fetched, fetching-s.fetching; n >= 1 && took > 0 {
		s.fetch = mean(s.fetch, took/n)
		s.fetched, s.fetching = fetched, fetching
	}
}

// mean moves a mean towards a new value in seconds.
func mean(old time.Duration, seconds float64) time.Duration {
	d := time.Duration(seconds * float64(time.Second))
	if old == 0 {
		return d
	}
	return (7*old + 3*d) / 10
}

// digests are those of a demand's prompt, nil where it does not decide.
func (p *Pool) digests(d *Demand) []uint64 {
	if len(d.Prompt) == 0 || d.Takeover {
		return nil
	}
	return prefixhash.All(d.Isolation, d.Prompt)
}

// know finds out who holds a begin of the prompt. At least its last token is read. The caller holds mu.
func (p *Pool) know(d *Demand, digests []uint64, now time.Time) {
	if digests == nil {
		return
	}
	d.known.held, d.known.disk, d.known.named = map[string]int{}, map[string]int{}, map[string]int{}
	note := func(worker string, tokens int, digest uint64) {
		if tokens > d.known.held[worker] && tokens < len(d.Prompt) && digests[tokens] == digest {
			d.known.held[worker] = tokens
		}
	}
	for id, w := range p.workers {
		for _, s := range w.info.Heartbeat.GetPrefixes().GetStates() {
			if !s.GetOnDisk() {
				note(id, int(s.GetTokens()), s.GetDigest())
			}
		}
		d.known.named[id] = d.known.held[id]
	}
	for _, s := range p.routes.sent {
		if now.Sub(s.at) < believed {
			note(s.worker, s.tokens, s.digest)
		}
	}
	for id, w := range p.workers {
		inMemory := d.known.held[id]
		for _, s := range w.info.Heartbeat.GetPrefixes().GetStates() {
			if s.GetOnDisk() {
				note(id, int(s.GetTokens()), s.GetDigest())
			}
		}
		if n := d.known.held[id] - inMemory; n > 0 {
			d.known.disk[id], d.known.named[id] = n, d.known.held[id]
		}
	}
	if n := (len(d.Prompt) - tailTokens) / pageTokens * pageTokens; n > 0 {
		d.known.tokens, d.known.digest = n, digests[n]
	}
}

// cost is how long it takes until a worker has what it holds on disk, what it is expected to fetch and the rest of the
// prompt, and what its other requests add to that.
func (p *Pool) cost(d *Demand, w *worker) time.Duration {
	token, request := p.paceOf(w)
	busy := request * time.Duration(w.used()) / time.Duration(w.slots)
	own := p.begin(d, w)
	if _, _, took := p.fetch(d, w); took > 0 {
		own = took
	}
	return own + time.Duration(w.backlog)*token + busy
}

// begin is how long a worker takes for a prompt by itself.
func (p *Pool) begin(d *Demand, w *worker) time.Duration {
	token, _ := p.paceOf(w)
	disk := w.info.Heartbeat.GetPrefixes().GetDiskTokenMs() * float64(d.known.disk[w.info.ID]) * float64(time.Millisecond)
	return time.Duration(len(d.Prompt)-d.known.held[w.info.ID])*token + time.Duration(disk)
}

// fetch is the worker from which w is expected to fetch a longer begin of the prompt, how much that one holds, and how
// long w takes for the prompt then; nil when reading is expected to be faster, and while that was not measured.
func (p *Pool) fetch(d *Demand, w *worker) (sender *worker, tokens int, took time.Duration) {
	if w.pace.fetch == 0 {
		return nil, 0, 0
	}
	token, _ := p.paceOf(w)
	held, best := d.known.held[w.info.ID], p.begin(d, w)
	sender, tokens = p.holder(d, w, d.known.named, func(o *worker) bool { return o.sending < mostSending })
	if sender == nil {
		return nil, 0, 0
	}
	took = time.Duration(tokens-held)*w.pace.fetch + time.Duration(len(d.Prompt)-tokens)*token
	if took >= best {
		return nil, 0, 0
	}
	return sender, tokens, took
}

// paceOf is the time of a prompt token and of an answer of a worker; of one that was not measured, the shortest of the
// others, so that it is tried.
func (p *Pool) paceOf(w *worker) (token, request time.Duration) {
	token, request = w.pace.token, w.pace.request
	if token == 0 {
		token = shortest(p.workers, func(o *worker) time.Duration { return o.pace.token }, defaultToken)
	}
	if request == 0 {
		request = shortest(p.workers, func(o *worker) time.Duration { return o.pace.request }, defaultRequest)
	}
	return token, request
}

// shortest is the shortest time that was measured of any worker, else byDefault.
func shortest(workers map[string]*worker, of func(*worker) time.Duration, byDefault time.Duration) (d time.Duration) {
	for _, w := range workers {
		if t := of(w); t > 0 && (d == 0 || t < d) {
			d = t
		}
	}
	if d == 0 {
		return byDefault
	}
	return d
}

// compare is negative when a is the better worker for d by what is left to read and to wait for, then by session; 0 =
// the load decides. The caller holds mu.
func (p *Pool) compare(d *Demand, a, b *worker) int {
	if !p.cfg.ByPrefix || d.known.held == nil {
		return 0
	}
	x, y := p.cost(d, a), p.cost(d, b)
	least := min(x, y)
	if diff := max(x, y) - least; diff > alikeTime && float64(diff) > alikeShare*float64(least) {
		if x < y {
			return -1
		}
		return 1
	}
	switch p.routes.sessions[d.Session] {
	case a.info.ID:
		return -1
	case b.info.ID:
		return 1
	}
	return 0
}

// routed notes where a request went. The caller holds mu.
func (p *Pool) routed(l *Slot, d *Demand, now time.Time) {
	k, r := &d.known, &p.routes
	if k.held == nil {
		return
	}
	sender, tokens, _ := p.fetch(d, l.w)
	switch {
	case !p.cfg.ByPrefix:
	case sender != nil:
		p.add(l.w, func(n *Routed) { n.Peer++ })
	case k.held[l.Worker] > 0:
		p.add(l.w, func(n *Routed) { n.Prefix++ })
	case d.Session != "" && r.sessions[d.Session] == l.Worker:
		p.add(l.w, func(n *Routed) { n.Session++ })
	default:
		p.add(l.w, func(n *Routed) { n.Load++ })
	}
	l.hoped = k.held[l.Worker]
	l.unread = len(d.Prompt) - l.hoped
	if sender != nil {
		l.sender, l.unread = sender, len(d.Prompt)-tokens
		sender.sending++
	} else {
		sender, tokens = p.holder(d, l.w, k.held, func(*worker) bool { return true })
	}
	if sender != nil {
		p.add(l.w, func(n *Routed) { n.Named++ })
		l.Peer = &tandemv1.PeerHint{
			WorkerId: sender.info.ID, Address: sender.info.Registration.GetAddress(),
			RemoteAddress:    sender.info.Registration.GetRemoteAddress(),
			SocketMadeUnixNs: sender.info.Registration.GetSocketMadeUnixNs(), Tokens: int32(tokens),
		}
	}
	l.w.backlog += l.unread
	if k.tokens > 0 {
		if len(r.sent) >= mostSent {
			r.sent = append(r.sent[:0], r.sent[1:]...)
		}
		r.sent = append(r.sent, sent{digest: k.digest, tokens: k.tokens, worker: l.Worker, at: now})
	}
	if d.Session != "" {
		r.remember(d.Session, l.Worker)
	}
}

// holder is the worker that holds most of the prompt by held, clearly more than w is believed to, and computes the same
// bits, of those that admits returns true for; nil if there is none. The caller holds mu.
func (p *Pool) holder(
	d *Demand, w *worker, held map[string]int, admits func(*worker) bool,
) (best *worker, tokens int) {
	tokens = d.known.held[w.info.ID] + peerTokens - 1
	for id, o := range p.workers {
		n := held[id]
		if o != w && o.ready() && (n > tokens || best != nil && n == tokens && id < best.info.ID) && admits(o) &&
			o.info.Registration.GetContract() == w.info.Registration.GetContract() {
			best, tokens = o, n
		}
	}
	return best, tokens
}

// remember notes where a session is. Of too many any one goes: it finds another worker, once.
func (r *routes) remember(session, worker string) {
	if r.sessions == nil {
		r.sessions = map[string]string{}
	}
	if _, ok := r.sessions[session]; !ok && len(r.sessions) >= mostSessions {
		for old := range r.sessions {
			delete(r.sessions, old)
			break
		}
	}
	r.sessions[session] = worker
}

// begun takes the prompt off the worker's backlog, and the fetch off its sender. It reports whether that was to be done
// still. The caller holds mu.
func (l *Slot) begun() bool {
	if l.unread == 0 {
		return false
	}
	l.w.backlog -= l.unread
	l.unread = 0
	if l.sender != nil {
		l.sender.sending--
		l.sender = nil
	}
	return true
}

// Read notes that the worker has read the prompt, of which it held so many tokens.
func (l *Slot) Read(cached int) {
	p := l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if !l.begun() {
		return
	}
	p.add(l.w, func(n *Routed) {
		n.Expected += uint64(l.hoped)
		n.Hit += uint64(max(0, min(cached, l.hoped)))
	})
}

// RoutedTo returns the counters of a worker since it joined; ok is false for unknown workers.
func (p *Pool) RoutedTo(id string) (r Routed, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[id]
	if w == nil {
		return r, false
	}
	return w.routed, true
}

// Routed returns the counters.
func (p *Pool) Routed() Routed {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.routes.stats
}
