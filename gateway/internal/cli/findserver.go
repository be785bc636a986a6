package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/services/kvtype"
	"github.com/tandem-inference/tandem/services/pause"
)

// noServer is the --server of tandem run that starts engines without asking for a running gateway first.
const noServer = "none"

// findTimeout bounds each question to a server that may not be there; it is on this machine.
const findTimeout = 2 * time.Second

// namePatience is how long a server that has just started may take to say which model it serves.
const namePatience = 5 * time.Second

// served is a gateway that answers.
type served struct {
	url  string
	http *http.Client
	// model is the name under which it serves, path its model file as far as the gateway shows it; both are empty before a
	// worker joined.
	model, path string
	// locked: it asks for a key that was not given or is wrong.
	locked bool
}

// serves reports whether the gateway's model is the file at path, or a copy of it by name and size. A gateway with keys
// shows the file's base name only, one in a container a path that does not exist here: then the name decides.
func (s *served) serves(path string) bool {
	sameName := filepath.Base(s.path) == filepath.Base(path)
	mine, err := os.Stat(path)
	if err != nil {
		return sameName
	}
	theirs, err := os.Stat(s.path)
	if err != nil {
		return sameName
	}
	return os.SameFile(mine, theirs) || sameName && mine.Size() == theirs.Size()
}

// defaultServer is where tandem serve listens unless it is told otherwise.
func defaultServer() string {
	port := os.Getenv("TANDEM_PORT")
	if port == "" || port == "0" {
		port = fmt.Sprint(app.Defaults().Port)
	}
	return "http://127.0.0.1:" + port
}

// findServer asks for a gateway at base; nil means that none is there. What serves there but is no gateway of ours is
// left alone.
func (c *RunCmd) findServer(ctx context.Context, base string) (*served, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: findTimeout}
	status, _, err := get(ctx, client, base+"/health/live", c.APIKey.Reveal(), mostPage)
	if err != nil {
		return nil, ctx.Err()
	}
	if status == http.StatusBadRequest { // so answers an https port
		base = "https://" + strings.TrimPrefix(base, "http://")
		trusted, err := c.client(base)
		if err != nil {
			return nil, err
		}
		client = &http.Client{Transport: trusted.Transport, Timeout: findTimeout}
		if status, _, err = get(ctx, client, base+"/health/live", c.APIKey.Reveal(), mostPage); err != nil {
			return nil, fmt.Errorf("a server is at %s, but: %w; trust it by --ca-file or --insecure, or load the model here "+
				"by --server %s", base, err, noServer)
		}
	}
	if status != http.StatusOK {
		return nil, nil
	}
	s := &served{url: base}
	if s.http, err = c.client(base); err != nil {
		// --ca-file for a server that speaks plain HTTP: it is meant for another one.
		return nil, err
	}
	for deadline := time.Now().Add(namePatience); ; {
		status, body, err := get(ctx, client, base+"/props", c.APIKey.Reveal(), mostPage)
		if err != nil {
			return nil, ctx.Err()
		}
		var props struct {
			Server     struct{ Name string }
			ModelAlias string `json:"model_alias"`
			ModelPath  string `json:"model_path"`
			Error      struct{ Code string }
		}
		_ = json.Unmarshal(body, &props)
		switch {
		case status == http.StatusUnauthorized && props.Error.Code == "invalid_api_key":
			s.locked = true
			return s, nil
		case status != http.StatusOK || props.Server.Name != "tandem":
			return nil, nil
		}
		s.model, s.path = props.ModelAlias, props.ModelPath
		if s.model != "" || time.Now().After(deadline) {
			return s, s.checkKey(ctx, c, client)
		}
		if !pause.For(ctx, 100*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
}

// checkKey asks for something that a key protects.
func (s *served) checkKey(ctx context.Context, c *RunCmd, client *http.Client) error {
	status, _, err := get(ctx, client, s.url+"/v1/models", c.APIKey.Reveal(), mostPage)
	s.locked = status == http.StatusUnauthorized
	return err
}

// mostPage bounds a short answer of a gateway, in bytes.
const mostPage = 1 << 20

// get reads at most so many bytes of a page. key may be empty.
func get(ctx context.Context, client *http.Client, url, key string, most int64) (status int, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	return send(client, request, key, most)
}

// post is get with a body of JSON.
func post(ctx context.Context, client *http.Client, url, key string, what any, most int64) (
	status int, body []byte, err error,
) {
	text, err := json.Marshal(what)
	if err != nil {
		return 0, nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	return send(client, request, key, most)
}

func send(client *http.Client, request *http.Request, key string, most int64) (status int, body []byte, err error) {
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, most))
	return response.StatusCode, body, err
}

// choose decides between a gateway that runs on this machine and engines of the command's own; nil stands for the
// latter. It says on standard error which it is. Nothing loads a model a second time without a word.
func (c *RunCmd) choose(e *env) (*served, error) {
	if c.Server == noServer {
		return nil, nil
	}
	say := func(format string, args ...any) { fmt.Fprintf(e.err, "tandem: "+format+"\n", args...) }
	base := defaultServer()
	s, err := c.findServer(e.ctx, base)
	if err != nil {
		return nil, err
	}
	what := "the demonstration models"
	if c.models.target != "" {
		what = c.models.target
	}
	switch {
	case s == nil:
		if !c.Quiet {
			say("no server at %s, loading %s here", base, what)
		}
		return nil, nil
	case s.locked:
		return nil, fmt.Errorf("the server at %s asks for a key: give --api-key, or load the model here by --server %s",
			s.url, noServer)
	case c.models.target != "" && !s.serves(c.models.target):
		other := s.model
		if other == "" {
			other = "no model yet"
		}
		say("the server at %s serves %s: loading %s beside it", s.url, other, what)
		return nil, nil
	case c.models.target == "" && s.model == "":
		say("the server at %s has no model yet", s.url)
	}
	if flags := c.engineFlags(); len(flags) > 0 {
		say("%s: not for the server at %s, loading %s beside it", strings.Join(flags, ", "), s.url, what)
		return nil, nil
	}
	if !c.Quiet && s.model != "" {
		say("asking the server at %s (%s)", s.url, s.model)
	}
	return s, nil
}

// AfterApply notes which flags the command line holds; those that came from variables were meant for tandem serve, too.
func (c *RunCmd) AfterApply(ctx *kong.Context) error {
	for _, step := range ctx.Path {
		if step.Flag != nil && !step.Resolved {
			c.given = append(c.given, step.Flag.Name)
		}
	}
	return nil
}

// engineFlags names the given flags that are for engines of the command's own. The draft is none of them: with or
// without, the answer is the same.
func (c *RunCmd) engineFlags() []string {
	parser, err := kong.New(&WorkerFlags{}, kong.Vars(kvtype.Vars()))
	if err != nil {
		panic("cli: flags of workers: " + err.Error()) // a broken tag, found by the first test
	}
	var names []string
	for _, flag := range parser.Model.Flags {
		if flag.Name != "draft" && slices.Contains(c.given, flag.Name) {
			names = append(names, "--"+flag.Name)
		}
	}
	return names
}
