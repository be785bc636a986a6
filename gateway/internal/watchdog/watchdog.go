// Package watchdog notices that a generation repeats itself without end (docs/spec/http-api.md §8.5).
package watchdog

// Modes of watching: all output, what follows reasoning that was closed by force, nothing.
const (
	Always     = "always"
	AfterClose = "after-close"
	Off        = "off"
)

// Modes lists the modes.
func Modes() []string { return []string{Always, AfterClose, Off} }

const (
	minPeriod, maxPeriod = 12, 80
	// fewIDs and repeats: a period of so few distinct tokens is suspicious only after so many repetitions. Rulers, tables
	// and indentation repeat a token or two for a while.
	fewIDs, repeats = 3, 3
)

// Watchdog follows the tokens of one choice. The zero value is ready; it allocates nothing.
type Watchdog struct {
	ring [2 * maxPeriod]int32 // the newest tokens, by count modulo its length
	n    int
	runs [maxPeriod + 1]int // by period: how many of the newest tokens equal the one a period before
}

// Push adds a token and reports whether the output is degenerate: the last p tokens equal the p before them for a
// period p of 12…80, and they hold more than 3 distinct ids or stand there 3 times.
func (w *Watchdog) Push(id int32) bool {
	at := w.n % len(w.ring)
	found := false
	for p := minPeriod; p <= maxPeriod && p <= w.n; p++ {
		if w.ring[(w.n-p)%len(w.ring)] != id {
			w.runs[p] = 0
			continue
		}
		w.runs[p]++
		if w.runs[p] >= (repeats-1)*p {
			found = true
		} else if w.runs[p] >= p && !found {
			found = w.varied(p, id)
		}
	}
	w.ring[at] = id
	w.n++
	return found
}

// varied reports whether the newest p tokens, newest among them, hold more than fewIDs distinct ids.
func (w *Watchdog) varied(p int, newest int32) bool {
	seen := [fewIDs]int32{newest}
	distinct := 1
next:
	for i := 1; i < p; i++ {
		id := w.ring[(w.n-i)%len(w.ring)]
		for _, s := range seen[:distinct] {
			if s == id {
				continue next
			}
		}
		if distinct == fewIDs {
			return true
		}
		seen[distinct] = id
		distinct++
	}
	return false
}
