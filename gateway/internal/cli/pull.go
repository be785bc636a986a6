package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/hub"
	"github.com/tandem-inference/tandem/services/config"
)

// PullCmd is tandem pull.
type PullCmd struct {
	Model string `arg:"" help:"OWNER/NAME on the hub, with :FILE or :QUANTISATION where there are several models, such as owner/name-GGUF:Q4_K_M."`
	StoreFlags
	Hub         string        `default:"${hub}" placeholder:"URL" help:"Hub that has the model; it speaks Hugging Face's API."`
	HubToken    config.Secret `placeholder:"TOKEN" help:"Token for models that are not public; default: the variable HF_TOKEN."`
	Revision    string        `default:"main" env:"-" help:"Branch, tag or commit."`
	WithDraft   bool          `env:"-" help:"Fetch the draft that lies beside the target, too."`
	Connections int           `default:"4" env:"-" help:"Parts of a file that are fetched at the same time."`
	Quiet       bool          `short:"q" env:"-" help:"Print nothing but the result."`
}

// StoreFlags say where pulled models are.
type StoreFlags struct {
	ModelStore string `type:"path" placeholder:"DIR" help:"Folder of models that tandem pull has fetched: OWNER/NAME/FILE. Default: tandem/models in $$XDG_DATA_HOME or ~/.local/share."`
}

func (f *StoreFlags) store() (hub.Store, error) {
	if f.ModelStore != "" {
		return hub.Store{Dir: f.ModelStore}, nil
	}
	dir, err := hub.DefaultDir()
	return hub.Store{Dir: dir}, err
}

// Validate reports what cannot work.
func (c *PullCmd) Validate() error {
	if _, ok := hub.ParseRef(c.Model); !ok {
		return fmt.Errorf("%q is no model like owner/name or owner/name:Q4_K_M", c.Model)
	}
	if c.Connections < 1 || c.Connections > 64 {
		return fmt.Errorf("--connections: must be 1 to 64, got %d", c.Connections)
	}
	return nil
}

// Run fetches the model.
func (c *PullCmd) Run(e *env) error {
	ref, _ := hub.ParseRef(c.Model)
	token := c.HubToken.Reveal()
	if token == "" {
		token = os.Getenv("HF_TOKEN")
	}
	client, err := hub.NewClient(c.Hub, token)
	if err != nil {
		return err
	}
	defer client.Close()
	store, err := c.store()
	if err != nil {
		return err
	}
	err = c.pull(e, client, store, ref)
	if errors.Is(err, hub.ErrChanged) {
		// The list of files that we had is of another commit.
		fmt.Fprintf(e.err, "tandem: %v: beginning again\n", err)
		err = c.pull(e, client, store, ref)
	}
	return err
}

func (c *PullCmd) pull(e *env, client *hub.Client, store hub.Store, ref hub.Ref) error {
	files, err := client.Files(e.ctx, ref.Repo, c.Revision)
	if err != nil {
		return err
	}
	models := hub.Models(files)
	target, err := hub.Choose(ref.Repo, models, ref.Choice)
	if err != nil {
		return err
	}
	path, err := c.fetch(e, client, store, ref.Repo, target)
	if err != nil {
		return err
	}
	draft, found := hub.DraftFor(target, models)
	if target.IsDraft() {
		found = false
	}
	switch {
	case c.WithDraft && !found:
		return fmt.Errorf("--with-draft: %s has no draft that clearly belongs to %s", ref.Repo, target.Path())
	case c.WithDraft:
		if _, err := c.fetch(e, client, store, ref.Repo, draft); err != nil {
			return err
		}
	case found && !c.Quiet:
		fmt.Fprintf(e.err, "A draft lies beside it: %s (--with-draft fetches it, too)\n", ref.Repo+":"+draft.Path())
	}
	if c.Quiet {
		fmt.Fprintln(e.out, path)
		return nil
	}
	line := fmt.Sprintf("tandem serve %s:%s", ref.Repo, target.Path())
	switch {
	case target.IsDraft():
		line = fmt.Sprintf("tandem serve TARGET --draft %s:%s", ref.Repo, target.Path())
	case c.WithDraft:
		line += " --draft " + ref.Repo + ":" + draft.Path()
	}
	fmt.Fprintf(e.out, "%s\n  Try   %s\n", path, line)
	return nil
}

// fetch gets the files of a model and returns the path of the first.
func (c *PullCmd) fetch(e *env, client *hub.Client, store hub.Store, repo string, model hub.Model) (string, error) {
	first := ""
	for _, file := range model.Files {
		bar := newPullBar(e, filepath.Base(file.Path), file.Size, c.Quiet)
		path, err := (&hub.Download{Client: client, Store: store, Repo: repo, Revision: c.Revision,
			Connections: c.Connections,
			Progress:    bar.done.Store, Checking: func() { bar.checking.Store(true) }}).Fetch(e.ctx, file)
		bar.stop()
		if err != nil {
			return "", stopped(e.ctx, err)
		}
		if first == "" {
			first = path
		}
	}
	return first, nil
}

// stopped says that what was fetched is kept, when a person has ended the command.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("stopped; the same command goes on where this one ended")
	}
	return err
}

// pullBar shows on a terminal how far a file is.
type pullBar struct {
	done     atomic.Int64
	checking atomic.Bool

	e     *env
	name  string
	size  int64
	began time.Time
	at    int64 // done when the first was shown
	ended chan struct{}
	drawn sync.WaitGroup
}

func newPullBar(e *env, name string, size int64, quiet bool) *pullBar {
	b := &pullBar{e: e, name: name, size: size, began: time.Now(), at: -1, ended: make(chan struct{})}
	if quiet {
		return b
	}
	if !isTerminal(e.err) {
		fmt.Fprintf(e.err, "%s, %s\n", name, config.Size(size).Human())
		return b
	}
	b.drawn.Go(func() {
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-b.ended:
				fmt.Fprint(e.err, "\r\x1b[K")
				return
			case now := <-ticker.C:
				fmt.Fprint(e.err, "\r\x1b[K"+b.line(now, terminalWidth(e.err)))
			}
		}
	})
	return b
}

// line is the bar at a time, at most width-1 columns.
func (b *pullBar) line(now time.Time, width int) string {
	const cells = 20
	done := b.done.Load()
	if b.at < 0 {
		b.at, b.began = done, now // what an earlier call has fetched says nothing about the speed
	}
	filled, percent := cells, int64(100)
	if b.size > 0 {
		filled, percent = int(cells*done/b.size), 100*done/b.size
	}
	line := fmt.Sprintf("%s [%s%s] %d %%, %s of %s", b.name, strings.Repeat("#", filled), strings.Repeat(".",
		cells-filled),
		percent, config.Size(done).Human(), config.Size(b.size).Human())
	seconds := now.Sub(b.began).Seconds()
	switch speed := float64(done-b.at) / max(seconds, 0.001); {
	case b.checking.Load():
		line += ", checking its hash"
	case seconds >= 1 && speed > 0:
		left := time.Duration(float64(b.size-done) / speed * float64(time.Second)).Round(time.Second)
		line += fmt.Sprintf(", %s/s, %v left", config.Size(speed).Human(), left)
	}
	return line[:min(len(line), max(width-1, 0))]
}

func (b *pullBar) stop() {
	close(b.ended)
	b.drawn.Wait()
}

// resolve returns the path of a model that is named as on the hub: OWNER/NAME:FILE. Whatever names a file that is
// there, or is no such name, stays as it is. path may have been made absolute by the command line's type.
func (f *StoreFlags) resolve(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	name := path
	if dir, err := os.Getwd(); err == nil && filepath.IsAbs(path) {
		if name, err = filepath.Rel(dir, path); err != nil {
			return path, nil
		}
	}
	ref, ok := hub.ParseRef(name)
	if !ok || ref.Choice == "" && strings.HasSuffix(name, ".gguf") {
		return path, nil
	}
	store, err := f.store()
	if err != nil {
		return "", err
	}
	found, err := store.Find(ref)
	if errors.Is(err, hub.ErrMissing) && ref.Choice == "" {
		return path, nil // looks like a path, which the caller reports
	}
	return found, err
}

// resolveAll resolves models in place.
func (f *StoreFlags) resolveAll(paths ...*string) error {
	var problems []error
	for _, path := range paths {
		found, err := f.resolve(*path)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		*path = found
	}
	return errors.Join(problems...)
}
