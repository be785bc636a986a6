package grammar

// lru bounds the number of masks that are kept: those not used for longest go first.
type lru struct {
	max, len    int
	first, last *State // newest, oldest
}

type lruEntry struct{ newer, older *State }

func (l *lru) add(s *State) {
	s.use = lruEntry{older: l.first}
	if l.first != nil {
		l.first.use.newer = s
	} else {
		l.last = s
	}
	l.first = s
	if l.len++; l.len > l.max {
		old := l.last
		l.remove(old)
		old.mask = nil
	}
}

func (l *lru) remove(s *State) {
	if s.use.newer != nil {
		s.use.newer.use.older = s.use.older
	} else {
		l.first = s.use.older
	}
	if s.use.older != nil {
		s.use.older.use.newer = s.use.newer
	} else {
		l.last = s.use.newer
	}
	s.use = lruEntry{}
	l.len--
}

func (l *lru) touch(s *State) {
	if l.first != s {
		l.remove(s)
		l.add(s)
	}
}

// clear forgets all entries; their masks go with them.
func (l *lru) clear() {
	for s := l.first; s != nil; {
		older := s.use.older
		s.mask, s.use = nil, lruEntry{}
		s = older
	}
	l.first, l.last, l.len = nil, nil, 0
}
