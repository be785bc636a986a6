// Package ui drives the live page of a demonstration cluster in a headless Chromium, Debian's package chromium. Without
// one, or without the programs in bin/, the test is skipped; TANDEM_TEST_UI=required makes that a failure. axe-core,
// which checks accessibility, comes by `npm ci --ignore-scripts` in this folder.
package ui

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/tandem-inference/tandem/tests/cluster"
)

const (
	// limit of the whole test.
	limit = 5 * time.Minute
	// patience is how long a test waits for what has to come.
	patience = time.Minute
)

// browser finds a Chromium.
func browser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	cluster.SkipClients(t, "TANDEM_TEST_UI", "no chromium is installed")
	return ""
}

// page is the live page in a browser.
type page struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex // guards faults
	faults []string   // of the console and of scripts
}

// open starts a cluster and a browser, and loads the page.
func open(t *testing.T) (*page, *cluster.Cluster) {
	t.Helper()
	program := browser(t)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	if missing := cluster.Missing(root); len(missing) > 0 {
		t.Skipf("bin/ lacks %s: run make build", strings.Join(missing, ", "))
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c, err := cluster.Start(ctx, cluster.Options{Args: []string{"--demo"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the cluster:\n%s", c.Log())
		}
		c.Close()
	})
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox,
		chromedp.WindowSize(1280, 1000))
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	p := &page{t: t, ctx: ctx}
	console := chromedp.Console(ctx)
	var listening sync.WaitGroup
	t.Cleanup(listening.Wait)
	t.Cleanup(cancel)
	listening.Go(func() {
		for m, err := range console {
			if err == nil {
				p.hear(m)
			}
		}
	})
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "light"}}}); err != nil {
		t.Fatal(err)
	}
	p.do(chromedp.Navigate(c.HTTP + "/ui"))
	return p, c
}

// hear keeps what the console reports as a fault.
func (p *page) hear(m chromedp.ConsoleMessage) {
	switch m.Type {
	case chromedp.ConsoleError, chromedp.ConsoleException, chromedp.ConsoleWarning:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.faults = append(p.faults, fmt.Sprintf("%v (%s:%d)", m, m.URL, m.Line+1))
	}
}

// do acts as somebody at the page.
func (p *page) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// eval returns the value of an expression.
func eval[T any](p *page, expression string) T {
	p.t.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatal(err)
	}
	return v
}

// until waits for an expression to be true: the browser looks with every frame.
func (p *page) until(what, expression string) {
	p.t.Helper()
	_, err := chromedp.Run(p.ctx, chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(patience)))
	if err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// axe checks accessibility; without axe-core it says so.
func (p *page) axe(state string) {
	p.t.Helper()
	source, err := os.ReadFile(filepath.Join("node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		p.t.Run("axe", func(t *testing.T) {
			cluster.SkipClients(t, "TANDEM_TEST_UI", "axe-core is not installed: run npm ci --ignore-scripts in tests/ui")
		})
		return
	}
	eval[chromedp.Void](p, string(source))
	found := eval[[]string](p, `axe.run().then((r) => r.violations.flatMap((v) =>
		v.nodes.map((n) => v.id + ": " + n.target.join(" ") + ": " + n.failureSummary)))`)
	for _, f := range found {
		p.t.Errorf("%s: axe: %s", state, f)
	}
}

// shot keeps a picture of the page in the folder that TANDEM_TEST_SHOTS names, if any.
func (p *page) shot(name string) {
	p.t.Helper()
	dir := os.Getenv("TANDEM_TEST_SHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

const (
	// colours are the spans of tokens in the newest answer.
	colours = `document.querySelectorAll("#log .turn:last-child .text .origin")`
	// drafted is a token of the newest answer that came with others of a draft or lookup.
	drafted = `[...` + colours + `].find((e) => e.matches(".draft, .lookup"))`
)

// TestPage walks through the page: load, chat, tree, race, compression, a kill, a narrow screen, both themes, no errors
// on the console, and nothing that axe-core complains of.
func TestPage(t *testing.T) {
	p, _ := open(t)
	p.until("events come", `document.getElementById("link").textContent === "live"`)
	opened := eval[float64](p, `performance.getEntriesByType("navigation")[0].loadEventEnd`)
	size := eval[float64](p, `performance.getEntriesByType("resource").filter((e) => !e.name.endsWith("/events"))
		.concat(performance.getEntriesByType("navigation")).reduce((n, e) => n + e.encodedBodySize, 0)`)
	t.Logf("the page opened in %.0f ms, %.0f bytes", opened, size)
	if size > 300<<10 || size == 0 {
		t.Errorf("the page has %.0f bytes", size)
	}
	p.until("workers are shown", `document.querySelectorAll("#workers .card[data-state=ready]").length === 3`)

	p.chat("Write a Go function that reverses a slice of ints.")
	p.tree()
	p.shot("light")
	p.axe("light")
	p.race()
	p.compression()
	p.placement()
	p.drain()
	p.kill()
	p.narrow()
	p.dark()

	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		t.Errorf("console: %s", f)
	}
}

// chat asks, and holds colours and text of the answer to each other.
func (p *page) chat(message string) {
	p.t.Helper()
	p.do(chromedp.SetValue("#most", "120"), chromedp.SendKeys("#message", message),
		chromedp.Click("#send"))
	p.until("the answer ends", `document.querySelector("#log .turn:last-child .quiet").textContent.includes("rounds")`)
	p.until("every token has its colour", `(() => {
		const text = document.querySelector("#log .turn:last-child .text:not(.thought)");
		return text.textContent.length > 0 &&
			[...text.querySelectorAll(".origin")].map((e) => e.textContent).join("") === text.textContent;
	})()`)
	p.until("the request is listed", `[...document.querySelectorAll("#requests tbody tr")].some((r) =>
		r.textContent.includes("done: ok") && r.textContent.includes("decode"))`)
	p.until("its rounds are on the time axis", `document.getElementById("lanes-text").textContent.includes("tokens a round")`)
}

// tree looks at the tree of a round by pointer and by keyboard.
func (p *page) tree() {
	p.t.Helper()
	p.until("a proposed token was accepted", drafted+` !== undefined`)
	eval[chromedp.Void](p, drafted+`.dispatchEvent(new MouseEvent("mouseenter"))`)
	// Rounds beyond 30 a second are not described: the pointer goes on to one that was.
	p.until("the tree of a round", `(() => {
		for (const e of `+colours+`) {
			if (document.querySelectorAll("#tree svg rect.taken").length > 1) return true;
			e.dispatchEvent(new MouseEvent("mouseenter"));
		}
		return document.querySelectorAll("#tree svg rect.taken").length > 1;
	})()`)
	counts := eval[[]int](p, `[document.querySelectorAll("#tree rect").length,
		document.querySelectorAll("#tree path").length, document.querySelectorAll("#tree rect.taken").length,
		document.querySelectorAll("#tree path.taken").length]`)
	if counts[0] != counts[1]+1 || counts[2] != counts[3]+1 {
		p.t.Errorf("the tree has %d nodes and %d edges, %d and %d on the accepted path", counts[0], counts[1], counts[2],
			counts[3])
	}
	p.do(chromedp.Focus(`#log .turn:last-child .origin[data-i="0"]`),
		chromedp.KeyEvent(kb.ArrowRight))
	p.until("the keyboard moves on", `document.activeElement.dataset.i === "1"`)
	if text := eval[string](p, `document.getElementById("round").textContent`); !strings.HasPrefix(text, "Token 2 ") {
		p.t.Errorf("the keyboard shows %q", text)
	}
	p.until("the tree again", `(() => {
		for (const e of `+colours+`) {
			if (document.querySelectorAll("#tree svg rect.taken").length > 1) return true;
			e.dispatchEvent(new MouseEvent("mouseenter"));
		}
		return document.querySelectorAll("#tree svg rect.taken").length > 1;
	})()`)
}

// race runs the same prompt twice.
func (p *page) race() {
	p.t.Helper()
	p.do(chromedp.Click("#tab-race"), chromedp.Click("#race button"))
	p.until("the race ends", `document.getElementById("verdict").className !== "verdict"`)
	verdict := eval[string](p, `document.getElementById("verdict").textContent`)
	if !strings.HasPrefix(verdict, "✓ The texts are equal") {
		p.t.Errorf("verdict %q", verdict)
	}
	if !eval[bool](p, `document.getElementById("plain-text").textContent.length > 0 &&
		document.getElementById("plain-text").textContent === document.getElementById("spec-text").textContent`) {
		p.t.Error("the texts beside each other differ")
	}
	p.axe("race")
}

// compression shows what was kept of a long text.
func (p *page) compression() {
	p.t.Helper()
	var text strings.Builder
	for i := range 120 {
		fmt.Fprintf(&text, "Paragraph %d is about the weather, which was fine that day. ", i)
		if i == 60 {
			text.WriteString("The secret code is 48213. ")
		}
	}
	p.do(chromedp.Click("#tab-prompt"), chromedp.SetValue("#document", text.String()),
		chromedp.Click("#compress button"))
	p.until("the compression ends", `!document.querySelector("#compress button").disabled`)
	report := eval[string](p, `document.getElementById("kept-report").textContent`)
	if !strings.Contains(report, "tokens were kept") {
		p.t.Errorf("report %q", report)
	}
	if !eval[bool](p, `document.querySelectorAll("#kept mark").length > 0 &&
		document.querySelectorAll("#kept del").length > 0 &&
		document.getElementById("kept").textContent === document.getElementById("document").value.trim()`) {
		p.t.Error("kept and dropped parts are not the text")
	}
	p.axe("compression")
	p.do(chromedp.Click("#tab-chat"))
}

// placement looks at what the cards say of memory and layers.
func (p *page) placement() {
	p.t.Helper()
	for _, worker := range []string{"worker-target", "worker-draft", "worker-prefill"} {
		p.until(worker+" says what memory and layers it has", fmt.Sprintf(`(() => {
			const facts = [...document.querySelectorAll('[data-worker=%q] dt')];
			const says = (name) => facts.find((e) => e.textContent === name)?.nextElementSibling.textContent || "";
			return /^[1-9][0-9]* (of [1-9][0-9]* )?MiB$/.test(says("memory")) && /^[1-9][0-9]*$/.test(says("layers"));
		})()`, worker))
	}
}

// drain takes the draft out, asks without it, and takes it back.
func (p *page) drain() {
	p.t.Helper()
	const draft = `document.querySelector('[data-worker="worker-draft"]')`
	p.do(chromedp.Click(`[data-drain="worker-draft"]`))
	p.until("the draft is draining", draft+`.dataset.state === "draining" &&
		`+draft+`.querySelector("[data-drain]").textContent === "Take back"`)
	p.axe("draining")
	p.chat("What is a map in Go?")
	p.do(chromedp.Click(`[data-drain="worker-draft"]`))
	p.until("the draft is back", draft+`.dataset.state === "ready" &&
		`+draft+`.querySelector("[data-drain]").textContent === "Drain"`)
}

// kill kills the draft, which goes and comes back, and then the target's engine. A button outlives news of its worker:
// one that is replaced while it is pressed is never clicked.
func (p *page) kill() {
	p.t.Helper()
	const draft, target = `document.querySelector('[data-worker="worker-draft"]')`,
		`document.querySelector('[data-worker="worker-target"]')`
	eval[chromedp.Void](p, `(() => {
		const card = document.querySelector('[data-worker="worker-draft"]');
		window.pressed = { button: card.querySelector("button"), told: card.textContent };
	})()`)
	p.until("news of the draft", draft+`.textContent !== pressed.told`)
	if !eval[bool](p, `pressed.button.isConnected`) {
		p.t.Error("the button was replaced by news of its worker")
	}
	p.do(chromedp.Click(`[data-kill="worker worker-draft"]`))
	// It may be back before the page sees that it is gone.
	p.until("the draft is back", draft+`?.dataset.state === "ready" && Number(`+draft+`.dataset.epoch) > 1`)
	p.do(chromedp.Click(`[data-kill="engine worker-target"]`))
	p.until("the engine was restarted", target+`?.dataset.state === "ready" &&
		`+target+`.textContent.includes("restarts")`)
	p.chat("What is a slice in Go?")
}

// narrow looks at the page on a phone.
func (p *page) narrow() {
	p.t.Helper()
	p.do(chromedp.EmulateViewport(360, 740))
	p.until("nothing is wider than the screen", `document.documentElement.scrollWidth <= 360`)
	p.shot("narrow")
	p.axe("narrow")
	p.do(chromedp.EmulateViewport(1280, 1000))
}

// dark switches the theme.
func (p *page) dark() {
	p.t.Helper()
	p.do(chromedp.Click("#theme"))
	p.until("the theme is dark", `document.documentElement.dataset.theme === "dark"`)
	p.tree()
	p.shot("dark")
	p.axe("dark")
}
