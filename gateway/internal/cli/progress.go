package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/config"
)

// style holds the escape sequences of a terminal, or nothing when the stream is none.
type style struct{ dim, plain string }

func newStyle(stream any) style {
	if !styled(stream) {
		return style{}
	}
	return style{dim: "\x1b[2m", plain: "\x1b[0m"}
}

// styled says whether a stream may get colours and other renditions: it is a terminal, and its owner wants them.
func styled(stream any) bool {
	return isTerminal(stream) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// progress draws a bar on a terminal while workers load; elsewhere it is silent.
type progress struct {
	w       io.Writer
	visible bool
	title   string

	mu      sync.Mutex // guards the rest
	total   int
	loading func() (done, total uint64) // bytes of the workers that are not ready
	done    []string
	began   time.Time
	stopped chan struct{}
	drawer  sync.WaitGroup
}

func newProgress(w io.Writer, quiet bool, title string) *progress {
	return &progress{w: w, visible: isTerminal(w) && !quiet, title: title, stopped: make(chan struct{})}
}

// step counts a worker that is ready.
func (p *progress) step(worker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = append(p.done, strings.TrimPrefix(worker, "worker-"))
}

// start draws until stop. loading tells the bytes of weights that workers have loaded which are not ready yet.
func (p *progress) start(total int, loading func() (done, total uint64)) {
	p.total, p.loading, p.began = total, loading, time.Now()
	if !p.visible {
		return
	}
	p.drawer.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-p.stopped:
				fmt.Fprint(p.w, "\r\x1b[K")
				return
			case <-ticker.C:
				fmt.Fprint(p.w, "\r\x1b[K"+p.line(terminalWidth(p.w)))
			}
		}
	})
}

func (p *progress) line(width int) string {
	const cells = 20
	p.mu.Lock()
	defer p.mu.Unlock()
	share, bytes := float64(len(p.done)), ""
	if done, total := p.loading(); total > 0 {
		share += float64(done) / float64(total)
		bytes = fmt.Sprintf("%s of %s  ", config.Size(done).Human(), config.Size(total).Human())
	}
	filled := 0
	if p.total > 0 {
		filled = min(cells, int(cells*share/float64(p.total)))
	}
	line := fmt.Sprintf("%s [%s%s] %.1f s  %s%s", p.title, strings.Repeat("#", filled), strings.Repeat(".", cells-filled),
		time.Since(p.began).Seconds(), bytes, strings.Join(p.done, ", "))
	return line[:min(len(line), max(width-1, 0))]
}

// stop removes the bar; it may be called again.
func (p *progress) stop() {
	p.mu.Lock()
	select {
	case <-p.stopped:
	default:
		close(p.stopped)
	}
	p.mu.Unlock()
	p.drawer.Wait()
}
