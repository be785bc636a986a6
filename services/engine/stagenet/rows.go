package stagenet

import (
	"context"
	"io"
	"sync"
	"time"
	"unsafe"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/border"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

const (
	// linkSlots bounds the steps whose rows are between two stages, as the steps with shared memory of package staged.
	linkSlots = 4
	// streamSlots is how many streams of a head have memory for hidden rows that the stage's engine sees, too. More take
	// the way through messages to the engine.
	streamSlots = 8
	// lateFactor is how many limits of silence hidden rows may take: 512 rows of 5120 values take 8 s at 10 Mbit/s.
	lateFactor = 5
)

// pool is memory for hidden rows, in slots. Where the engine is a process of this host it sees them as well, so that
// rows are read from the network to where the engine wants them, and sent from where it made them.
type pool struct {
	room   int            // bytes of a slot
	shared bool           // the engine sees the slots
	region *border.Region // nil = slots are this process's own
	free   chan []byte

	mu     sync.Mutex // guards the fields below
	lent   int
	closed bool
}

// newPool makes a pool of slots for so many bytes; shared says that an engine is to see them.
func newPool(room int, shared bool) *pool {
	p := &pool{room: room, free: make(chan []byte, linkSlots+streamSlots)}
	if shared {
		p.region, _ = border.New(cap(p.free), room) // without: rows are sent to the engine
		p.shared = p.region != nil
	}
	for range cap(p.free) {
		var slot []byte
		if p.region != nil {
			slot = p.region.Take()
		}
		p.free <- slot
	}
	return p
}

// errClosed is for those who are late.
var errClosed = rpcerr.EngineLost.With("the hold has ended")

// take waits for an empty slot. The caller gives it back.
func (p *pool) take(ctx context.Context) ([]byte, error) {
	select {
	case slot := <-p.free:
		return p.lend(slot)
	case <-ctx.Done():
		return nil, rpcerr.From(ctx.Err())
	}
}

// takeSpare returns a slot that links can do without, nil = there is none.
func (p *pool) takeSpare() []byte {
	if p == nil || !p.shared || len(p.free) <= linkSlots {
		return nil
	}
	select {
	case slot := <-p.free:
		slot, _ = p.lend(slot) // closed: there is none
		return slot
	default:
		return nil
	}
}

func (p *pool) lend(slot []byte) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if slot == nil {
		slot = make([]byte, 0, p.room)
	}
	p.lent++
	return slot, nil
}

// hold keeps the slots mapped until release, for an engine that compares what it gets with where they lie.
func (p *pool) hold() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	p.lent++
	return nil
}

// release ends a hold.
func (p *pool) release() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lent--
	p.unmap()
}

// give takes a slot back. Nobody touches it any more.
func (p *pool) give(slot []byte) {
	p.free <- slot[:0]
	p.release()
}

// close unmaps the slots once all are back.
func (p *pool) close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.unmap()
}

// unmap is called with mu held.
func (p *pool) unmap() {
	if p.closed && p.lent == 0 {
		p.region.Close()
		p.region = nil
	}
}

// same reports whether b begins where slot does.
func same(b, slot []byte) bool { return unsafe.SliceData(b) == unsafe.SliceData(slot) }

// incoming are the rows that come straight from the stage before.
type incoming struct {
	pool     *pool
	patience time.Duration
	turn     chan struct{} // of the one who waits
	news     chan struct{} // rows, or the end
	late     *time.Timer   // of the one who waits

	mu      sync.Mutex // guards the fields below
	secret  string     // empty = nobody may send
	sender  string
	linked  bool      // somebody sends, or has
	arrived []arrival // numbers ascend
	last    uint64    // the newest number
	err     error     // why no more come
}

// arrival is rows of a step.
type arrival struct {
	number uint64
	rows   []byte // a slot
}

func newIncoming(p *pool, patience time.Duration) *incoming {
	in := &incoming{pool: p, patience: patience, turn: make(chan struct{}, 1), news: make(chan struct{}, 1),
		late: time.NewTimer(time.Hour), arrived: make([]arrival, 0, linkSlots+streamSlots)}
	in.late.Stop()
	return in
}

// put adds rows that have come, in a slot that is the rows' from now on.
func (in *incoming) put(number uint64, rows []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err != nil {
		return in.err
	}
	if number <= in.last {
		return rpcerr.InvalidArgument("number", "is %d after %d, must ascend", number, in.last)
	}
	in.last = number
	in.arrived = append(in.arrived, arrival{number, rows})
	in.tell()
	return nil
}

// end says that no more rows come.
func (in *incoming) end(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err == nil {
		if err == nil || err == io.EOF {
			err = rpcerr.EngineLost.With("the stage before has hung up")
		}
		in.err = rpcerr.EngineLost.With("rows of the stage before have ended").WithCause(err)
	}
	in.tell()
}

func (in *incoming) tell() {
	select {
	case in.news <- struct{}{}:
	default:
	}
}

// close gives back what nobody took.
func (in *incoming) close() {
	if in == nil {
		return
	}
	in.end(nil)
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, a := range in.arrived {
		in.pool.give(a.rows)
	}
	in.arrived = in.arrived[:0]
}

// find returns the rows of a step; nil without error: they may still come. Rows of steps before it belong to steps that
// were given up.
func (in *incoming) find(number uint64) ([]byte, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	old := 0
	for ; old < len(in.arrived) && in.arrived[old].number < number; old++ {
		in.pool.give(in.arrived[old].rows)
	}
	found := old < len(in.arrived) && in.arrived[old].number == number
	var rows []byte
	if found {
		rows = in.arrived[old].rows
		old++
	}
	in.arrived = in.arrived[:copy(in.arrived, in.arrived[old:])]
	switch {
	case found:
		return rows, nil
	case in.last >= number:
		return nil, rpcerr.EngineLost.With("rows of step %d have not come, those of step %d have", number, in.last)
	}
	return nil, in.err
}

// take waits for the rows of a step, in a slot that the caller gives back. It fails when they cannot come any more, or
// not in time.
func (in *incoming) take(ctx context.Context, number uint64) ([]byte, error) {
	select {
	case in.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, rpcerr.From(ctx.Err())
	}
	defer func() { <-in.turn }()
	for waits := false; ; waits = true {
		rows, err := in.find(number)
		if rows != nil || err != nil {
			return rows, err
		}
		in.late.Reset(in.patience)
		if !waits {
			defer in.late.Stop()
		}
		select {
		case <-in.news:
		case <-in.late.C:
			return nil, rpcerr.EngineLost.With("rows of step %d have not come for %v", number, in.patience)
		case <-ctx.Done():
			return nil, rpcerr.From(ctx.Err())
		}
	}
}

// served is the engine of a stage as its head sees it: files are named by digest, and rows may come from another stage
// and go to one.
type served struct {
	engine.Target
	x      *session
	hidden int
}

// Step implements engine.Target.
func (e *served) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if err := e.x.inPool().hold(); err != nil {
		return err
	}
	defer e.x.inPool().release()
	if err := e.x.out.hold(); err != nil {
		return err
	}
	defer e.x.out.release()
	if step.RowsFrom == 0 && step.RowsTo == 0 {
		return e.Target.Step(ctx, step, result)
	}
	from, to := step.RowsFrom, step.RowsTo
	ownIn, ownOut := step.HiddenIn, result.HiddenOut
	link := e.x.forwards()
	switch {
	case from != 0 && (e.x.in == nil || len(ownIn) != 0):
		return rpcerr.InvalidArgument("rows_from", "the stage gets no rows from another, or has got others with the step")
	case to != 0 && link == nil:
		return rpcerr.InvalidArgument("rows_to", "the stage has no link to the next one")
	}
	step.RowsFrom, step.RowsTo = 0, 0
	defer func() {
		step.RowsFrom, step.RowsTo, step.HiddenIn, result.HiddenOut = from, to, ownIn, ownOut
	}()
	if from != 0 {
		rows, err := e.x.in.take(ctx, from)
		if err != nil {
			return e.lost(ctx, err)
		}
		defer e.x.in.pool.give(rows)
		if want := len(step.Rows) * e.hidden * step.Hidden.Bytes(); len(rows) != want {
			return e.lost(ctx, rpcerr.EngineLost.With("the rows of step %d have %d bytes instead of %d", from, len(rows),
				want))
		}
		step.HiddenIn = rows
	}
	if to == 0 {
		err := e.Target.Step(ctx, step, result)
		ownOut = result.HiddenOut
		return err
	}
	slot, err := e.x.out.take(ctx)
	if err != nil {
		return err
	}
	result.HiddenOut = slot
	err = e.Target.Step(ctx, step, result)
	ownOut = ownOut[:0]
	if err == nil && !same(result.HiddenOut, slot) {
		err = rpcerr.EngineLost.With("hidden rows of %d bytes have no room in %d", len(result.HiddenOut), cap(slot))
	}
	if err != nil {
		e.x.out.give(slot)
		return err
	}
	return e.lost(ctx, link.send(to, result.HiddenOut))
}

// lost ends the hold with an error that is not the caller's: stages that lack rows do not hold the same any more.
func (e *served) lost(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil {
		e.x.cancel(err)
	}
	return err
}

// ShareRows implements border.Sharer: what the head shares with this process the engine sees, too.
func (e *served) ShareRows(ctx context.Context, in, out *border.Region) error {
	e.x.opening.Lock()
	defer e.x.opening.Unlock()
	e.x.makeRoom(ctx, in, out)
	return nil
}

// Room implements host.Roomer: memory that this process and the engine both see.
func (e *served) Room() (in, out []byte, free func()) {
	e.x.opening.Lock()
	defer e.x.opening.Unlock()
	e.x.makeRoom(context.Background(), nil, nil)
	p := e.x.inPool()
	in, out = p.takeSpare(), e.x.out.takeSpare()
	return in, out, func() {
		if in != nil {
			p.give(in)
		}
		if out != nil {
			e.x.out.give(out)
		}
	}
}
