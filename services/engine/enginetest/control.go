package enginetest

import (
	"slices"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

func (s *suite) openErrors() {
	good := options(s.models.Target)
	cases := []struct {
		name  string
		edit  func(*engine.OpenOptions)
		code  codes.Code
		words []string
	}{
		{"no path", func(o *engine.OpenOptions) { o.ModelPath = "" }, codes.InvalidArgument, []string{"model_path"}},
		{"missing file", func(o *engine.OpenOptions) { o.ModelPath = s.models.Missing }, codes.NotFound, nil},
		{"negative sequences", func(o *engine.OpenOptions) { o.MaxSequences = -1 }, codes.InvalidArgument,
			[]string{"max_sequences"}},
		{"negative context", func(o *engine.OpenOptions) { o.MaxContext = -1 }, codes.InvalidArgument,
			[]string{"max_context"}},
		{"too wide a tree", func(o *engine.OpenOptions) { o.MaxTreeRows = 129 }, codes.InvalidArgument,
			[]string{"max_tree_rows"}},
		{"negative batch", func(o *engine.OpenOptions) { o.MaxBatchRows = -1 }, codes.InvalidArgument,
			[]string{"max_batch_rows"}},
		{"negative top-k", func(o *engine.OpenOptions) { o.MaxTopK = -1 }, codes.InvalidArgument, []string{"max_top_k"}},
		{"layers backwards", func(o *engine.OpenOptions) { o.LayerFirst, o.LayerLast = 2, 1 }, codes.InvalidArgument,
			[]string{"layer_last", "layer_first"}},
		{"layers beyond", func(o *engine.OpenOptions) { o.LayerLast = 100000 }, codes.InvalidArgument,
			[]string{"layer_last"}},
		{"cache type", func(o *engine.OpenOptions) { o.KVTypeK = 999 }, codes.Unimplemented, []string{"kv_type"}},
		{"tiny memory", func(o *engine.OpenOptions) { o.MemoryCapBytes = 1 }, codes.ResourceExhausted,
			[]string{"memory", "cap"}},
		{"unknown device", func(o *engine.OpenOptions) { o.Device = "abacus:7" }, codes.InvalidArgument, []string{"device"}},
	}
	for _, c := range cases {
		o := good
		c.edit(&o)
		e, err := s.opener.OpenTarget(s.ctx, o, nil)
		if err == nil {
			_ = e.Close()
		}
		s.refused(c.name, err, c.code, c.words...)
	}
	if s.models.Draft != "" {
		o := s.draftOptions()
		o.TablesPath = ""
		e, err := s.opener.OpenDraft(s.ctx, o, nil)
		if err == nil {
			_ = e.Close()
		}
		s.refused("draft without tables", err, codes.InvalidArgument, "tables_path")
	}
}

func (s *suite) info() {
	var last, total uint64
	calls := 0
	o := options(s.models.Target)
	e, err := s.opener.OpenTarget(s.ctx, o, func(done, all uint64) {
		if done < last || done > all || calls > 0 && all != total {
			s.Errorf("progress went from %d of %d to %d of %d", last, total, done, all)
		}
		last, total = done, all
		calls++
	})
	s.ok(err)
	defer func() { s.ok(e.Close()) }()
	if calls > 0 && last != total {
		s.Errorf("progress ended at %d of %d", last, total)
	}
	i := e.Info()
	if i.Role != engine.RoleTarget || i.MaxSequences != o.MaxSequences || i.MaxContext != o.MaxContext ||
		i.MaxTreeRows != o.MaxTreeRows ||
		i.MaxBatchRows != o.MaxBatchRows || i.MaxTopK != o.MaxTopK {
		s.Errorf("limits are not what was asked for: %+v", i)
	}
	if i.Arch == "" || i.Backend == "" || i.Device == "" || i.Layers < 1 || i.LayerFirst != 0 ||
		i.LayerLast != i.Layers || i.Hidden < 1 || i.Vocab < 2 {
		s.Errorf("shape is incomplete: %+v", i)
	}
	if i.KVTypeK == engine.KVDefault || i.KVTypeV == engine.KVDefault {
		s.Errorf("the default cache types are not resolved: %+v", i)
	}
	s.choosesTypes(i)
	if len(i.CaptureLayers) != 0 || i.FeatureRaw != 0 || i.FeatureFused != 0 {
		s.Errorf("a fresh target captures: %+v", i)
	}
	memory, err := e.Memory(s.ctx)
	s.ok(err)
	sum := uint64(0)
	for _, m := range memory {
		if m.Name == "" {
			s.Error("a memory entry has no name")
		}
		sum += m.Value
	}
	if sum == 0 {
		s.Error("no memory is reported")
	}
	if s.models.Draft != "" {
		d := s.draftEngine().Info()
		if d.Role != engine.RoleDraft || d.BlockSize < 2 || len(d.CaptureLayers) == 0 || d.FeatureFused < 1 ||
			d.FeatureRaw != len(d.CaptureLayers)*i.Hidden || d.Vocab != i.Vocab {
			s.Errorf("draft: %+v", d)
		}
	}
}

func (s *suite) close() {
	e, err := s.opener.OpenTarget(s.ctx, options(s.models.Target), nil)
	s.ok(err)
	q := s.sequence(e)
	s.ok(e.Close())
	s.ok(e.Close())
	if _, err := e.NewSequence(s.ctx); err == nil {
		s.Error("a closed engine makes sequences")
	}
	if err := e.Step(s.ctx, one(pending(q), rowsOf(0, chain([]int32{1}), 0)), &engine.StepResult{}); err == nil {
		s.Error("a closed engine steps")
	}
}

func (s *suite) sequences() {
	e := s.target()
	seen := map[engine.Sequence]bool{}
	var all []engine.Sequence
	for range maxSequences {
		q := s.sequence(e)
		if seen[q] {
			s.Fatalf("handle %d is given out twice", q)
		}
		seen[q] = true
		all = append(all, q)
		if n := s.length(e, q); n != 0 {
			s.Errorf("a new sequence has %d positions", n)
		}
	}
	_, err := e.NewSequence(s.ctx)
	s.refused("one too many", err, codes.ResourceExhausted, "max_sequences", "sequences")
	s.feed(e, all[0], s.tokens(e, 5), 0)
	if n := s.length(e, all[0]); n != 5 {
		s.Errorf("length %d after 5 tokens", n)
	}
	s.ok(e.FreeSequence(s.ctx, all[0]))
	_, err = e.SequenceLength(s.ctx, all[0])
	s.refused("length of a freed one", err, codes.NotFound, "sequence")
	s.refused("freed twice", e.FreeSequence(s.ctx, all[0]), codes.NotFound, "sequence")
	s.refused("free -1", e.FreeSequence(s.ctx, -1), codes.NotFound, "sequence")
	s.refused("free 1000000", e.FreeSequence(s.ctx, 1000000), codes.NotFound, "sequence")
	if n := s.length(e, s.sequence(e)); n != 0 {
		s.Errorf("a sequence in a used place has %d positions", n)
	}
}

func (s *suite) truncate() {
	e := s.target()
	q := s.sequence(e)
	tokens := s.tokens(e, 12)
	first := rowBits(s.oneByOne(e, q, tokens), 0, 1)
	s.refused("beyond", e.Truncate(s.ctx, q, 13), codes.InvalidArgument, "length")
	s.refused("negative", e.Truncate(s.ctx, q, -1), codes.InvalidArgument, "length")
	s.refused("unknown", e.Truncate(s.ctx, -5, 0), codes.NotFound, "sequence")
	s.ok(e.Truncate(s.ctx, q, 12))
	if e.Info().Recurrent {
		s.refused("recurrent", e.Truncate(s.ctx, q, 6), codes.FailedPrecondition)
		if n := s.length(e, q); n != 12 {
			s.Errorf("a refused truncation left %d positions", n)
		}
		s.ok(e.Truncate(s.ctx, q, 0))
		s.same("after truncation to 0", first, rowBits(s.oneByOne(e, q, tokens), 0, 1))
		return
	}
	s.ok(e.Truncate(s.ctx, q, 6))
	s.same("after truncation", first, rowBits(s.oneByOne(e, q, tokens[6:]), 0, 1))
}

// oneByOne decodes given tokens with single committed rows and returns the last row's outputs.
func (s *suite) oneByOne(e engine.Target, q engine.Sequence, tokens []int32) *engine.StepResult {
	s.Helper()
	r := &engine.StepResult{}
	at := s.length(e, q)
	g := pending(q)
	for i, t := range tokens {
		s.ok(e.Step(s.ctx, one(g, rowsOf(at+i, chain([]int32{t}), everything)), r))
		g.Path = []int32{0}
	}
	s.commit(e, q, 0)
	return r
}

func (s *suite) stats() {
	e := s.target()
	q := s.sequence(e)
	s.feed(e, q, s.tokens(e, 8), 0)
	read := func() map[string]uint64 {
		stats, err := e.Stats(s.ctx)
		s.ok(err)
		m := map[string]uint64{}
		for _, st := range stats {
			if _, ok := m[st.Name]; ok || st.Name == "" {
				s.Errorf("counter %q is empty or listed twice", st.Name)
			}
			m[st.Name] = st.Value
		}
		return m
	}
	before := read()
	if len(before) == 0 {
		s.Fatal("no counters")
	}
	s.step(e, q, s.randomTree(e, 6), engine.WantToken)
	s.commit(e, q)
	after := read()
	grown := false
	for name, v := range before {
		w, ok := after[name]
		if !ok || w < v {
			s.Errorf("counter %q went from %d to %d", name, v, w)
		}
		grown = grown || w > v
	}
	if !grown {
		s.Error("a step moved no counter")
	}
}

// concurrent callers are served one after the other; statistics never wait.
func (s *suite) concurrent() {
	e := s.target()
	var wg sync.WaitGroup
	fail := make(chan error, 64)
	prompt := s.tokens(e, 6)
	results := make([]int32, maxSequences)
	for i := range maxSequences {
		wg.Add(1)
		go func() {
			defer wg.Done()
			q, err := e.NewSequence(s.ctx)
			if err != nil {
				fail <- err
				return
			}
			r := &engine.StepResult{}
			g := pending(q)
			for at, t := range prompt {
				if err := e.Step(s.ctx, one(g, rowsOf(at, chain([]int32{t}), engine.WantToken)), r); err != nil {
					fail <- err
					return
				}
				g.Path = []int32{0}
				if _, err := e.Stats(s.ctx); err != nil {
					fail <- err
				}
				_ = e.Info()
			}
			results[i] = r.Tokens[0]
			if err := e.FreeSequence(s.ctx, q); err != nil {
				fail <- err
			}
		}()
	}
	wg.Wait()
	close(fail)
	for err := range fail {
		s.Error(rpcerr.Code(err), err)
	}
	for _, r := range results {
		if r != results[0] {
			s.Errorf("the same prompt gave %v", results)
		}
	}
}

// handles: an engine lists what exists in it, and nothing that was freed or refused.
func (s *suite) handles() {
	e := s.target()
	expect := func(what string, sequences []engine.Sequence, snapshots []engine.Snapshot) {
		s.Helper()
		h, err := e.Handles(s.ctx)
		s.ok(err)
		if !slices.Equal(h.Sequences, sequences) || !slices.Equal(h.Snapshots, snapshots) {
			s.Errorf("%s: %v, want sequences %v and snapshots %v", what, h, sequences, snapshots)
		}
	}
	expect("a new engine", nil, nil)
	var all []engine.Sequence
	for range maxSequences {
		q, err := e.NewSequence(s.ctx)
		s.ok(err)
		all = append(all, q)
	}
	_, err := e.NewSequence(s.ctx)
	s.refused("one sequence too many", err, codes.ResourceExhausted)
	slices.Sort(all)
	expect("all sequences", all, nil)
	p, err := e.NewSnapshot(s.ctx, all[0])
	s.ok(err)
	expect("with a snapshot", all, []engine.Snapshot{p})
	s.ok(e.FreeSequence(s.ctx, all[1]))
	s.refused("freed twice", e.FreeSequence(s.ctx, all[1]), codes.NotFound)
	s.ok(e.FreeSnapshot(s.ctx, p))
	expect("after frees", slices.Delete(all, 1, 2), nil)
}

// choosesTypes: where memory is plenty, automatic types of cached keys and values are the default ones.
func (s *suite) choosesTypes(byDefault engine.Info) {
	o := options(s.models.Target)
	o.KVTypeK, o.KVTypeV = engine.KVAuto, engine.KVAuto
	if i := s.openTarget(o).Info(); i.KVTypeK != byDefault.KVTypeK || i.KVTypeV != byDefault.KVTypeV {
		s.Errorf("automatic cache types are %d and %d, want %d and %d", i.KVTypeK, i.KVTypeV, byDefault.KVTypeK,
			byDefault.KVTypeV)
	}
}
