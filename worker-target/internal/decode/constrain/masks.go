package constrain

import "github.com/tandem-inference/tandem/worker-target/internal/constraint"

// masks are the distinct masks of a step's rows.
type masks struct {
	keys []constraint.Key
	bits []uint32 // [keys, words of a mask]
}

func (m *masks) reset() { m.keys, m.bits = m.keys[:0], m.bits[:0] }

// mask returns the index of the mask of a state, -1 when every token may be chosen.
func (m *masks) mask(c *constraint.Constraint, state constraint.State) (int32, error) {
	key, masked := c.Masked(state)
	if !masked {
		return -1, nil
	}
	for i, k := range m.keys {
		if k == key {
			return int32(i), nil
		}
	}
	n := len(m.keys)
	words := c.Words()
	if cap(m.bits) < (n+1)*words {
		grown := make([]uint32, n*words, (2*n+8)*words)
		copy(grown, m.bits)
		m.bits = grown
	}
	m.bits = m.bits[:(n+1)*words]
	if err := c.Fill(key, m.bits[n*words:]); err != nil {
		return -1, err
	}
	m.keys = append(m.keys, key)
	return int32(n), nil
}

// all returns the masks and their number.
func (m *masks) all() ([]uint32, int) {
	if len(m.keys) == 0 {
		return nil, 0
	}
	return m.bits, len(m.keys)
}
