// Package hub fetches model files from a server with Hugging Face's API and keeps them in a folder of models. A file
// gets its name when it is complete and its SHA-256 is right, never before.
package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/services/pause"
)

// DefaultBase is where the hub is unless told otherwise.
const DefaultBase = "https://huggingface.co"

// Client asks a hub.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
	// wait pauses between tries; tests do not.
	wait func(ctx context.Context, d time.Duration) bool
	// silence is how long a server may send nothing.
	silence time.Duration
}

// NewClient makes a client of the hub at base. The token is sent to that host only.
func NewClient(base, token string) (*Client, error) {
	u, err := url.Parse(strings.TrimRight(base, "/"))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--hub: %q is no address like %s", base, DefaultBase)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = time.Minute
	// Ranges are of the file's bytes, not of a compressed form.
	transport.DisableCompression = true
	c := &Client{base: u, token: token, wait: pause.For, silence: time.Minute}
	c.http = &http.Client{Transport: transport, CheckRedirect: c.redirect}
	return c, nil
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// redirect lets a hub send us to the host that has the bytes, without the token.
func (c *Client) redirect(request *http.Request, via []*http.Request) error {
	switch {
	case len(via) >= 10:
		return errors.New("ten redirects in a row")
	case c.base.Scheme == "https" && request.URL.Scheme != "https":
		return fmt.Errorf("the hub sends us to %s, without encryption", request.URL.Host)
	}
	if request.URL.Scheme != c.base.Scheme || request.URL.Host != c.base.Host {
		request.Header.Del("Authorization")
	}
	return nil
}

// get asks for a URL of the hub; the caller closes the body.
func (c *Client) get(ctx context.Context, address string, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	for key, values := range header {
		request.Header[key] = values
	}
	request.Header.Set("User-Agent", "tandem")
	if c.token != "" && request.URL.Host == c.base.Host {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	return c.http.Do(request)
}

// statusError is an answer other than the file.
type statusError struct {
	status int
	after  time.Duration // Retry-After
	text   string
}

func (e *statusError) Error() string { return e.text }

// passing says whether the same question may be answered later.
func (e *statusError) passing() bool {
	return e.status == http.StatusTooManyRequests || e.status == http.StatusRequestTimeout || e.status >= 500
}

// refuse turns an answer into an error that says what to do.
func (c *Client) refuse(response *http.Response, repo, what string) error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<12))
	var reply struct{ Error string }
	_ = json.Unmarshal(body, &reply)
	e := &statusError{status: response.StatusCode, after: retryAfter(response.Header.Get("Retry-After"))}
	said := response.Status
	if reply.Error != "" {
		said += ": " + reply.Error
	}
	e.text = fmt.Sprintf("%s: the hub answers %s", what, said)
	switch response.StatusCode {
	case http.StatusUnauthorized:
		e.text += "; it does not exist, or needs a token that may read it: set HF_TOKEN"
	case http.StatusForbidden:
		e.text += fmt.Sprintf("; accept the conditions at %s/%s, with the account of the token in HF_TOKEN", c.base, repo)
	case http.StatusNotFound:
		e.text += "; check the name and --revision, and set HF_TOKEN if it is private"
	}
	return e
}

// retryAfter reads seconds or a date; at most ten minutes.
func retryAfter(value string) time.Duration {
	var d time.Duration
	if n, err := strconv.Atoi(value); err == nil {
		d = time.Duration(min(n, 600)) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		d = time.Until(at)
	}
	return max(0, min(d, 10*time.Minute))
}

// tries is how often the same thing may fail in a row.
const tries = 6

// retry does something until it succeeds, fails for good, or failed tries times without progress.
func (c *Client) retry(ctx context.Context, do func() (progress bool, err error)) error {
	for failed := 0; ; {
		progress, err := do()
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		var status *statusError
		var final *finalError
		if errors.As(err, &status) && !status.passing() || errors.As(err, &final) {
			return err
		}
		if progress {
			failed = 0
		}
		if failed++; failed == tries {
			return fmt.Errorf("%w (tried %d times)", err, tries)
		}
		delay := time.Second << (failed - 1)
		if status != nil && status.after > 0 {
			delay = status.after
		}
		if !c.wait(ctx, delay) {
			return ctx.Err()
		}
	}
}

// finalError is one that another try does not mend.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

// File is one of a repository.
type File struct {
	Path string
	Size int64
	// SHA256 is that of the contents, empty when the hub does not know it: then Blob is git's name for them.
	SHA256, Blob string
}

var nextPage = regexp.MustCompile(`<([^>]+)>\s*;\s*rel="next"`)

// Files lists a repository.
func (c *Client) Files(ctx context.Context, repo, revision string) ([]File, error) {
	var files []File
	address := fmt.Sprintf("%s/api/models/%s/tree/%s?recursive=true", c.base, repo, url.PathEscape(revision))
	for pages := 0; address != ""; pages++ {
		if pages == 1000 {
			return nil, fmt.Errorf("%s: the hub's list of files does not end", repo)
		}
		next := ""
		err := c.retry(ctx, func() (bool, error) {
			response, err := c.get(ctx, address, nil)
			if err != nil {
				return false, err
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return false, c.refuse(response, repo, repo)
			}
			var page []struct {
				Type, Path, OID string
				Size            int64
				LFS             *struct {
					OID  string
					Size int64
				}
			}
			if err := json.NewDecoder(io.LimitReader(response.Body, 64<<20)).Decode(&page); err != nil {
				return false, fmt.Errorf("%s: the hub's list of files: %w", repo, err)
			}
			for _, entry := range page {
				if entry.Type != "file" {
					continue
				}
				file := File{Path: entry.Path, Size: entry.Size, Blob: entry.OID}
				if entry.LFS != nil {
					file.Size, file.SHA256 = entry.LFS.Size, strings.TrimPrefix(entry.LFS.OID, "sha256:")
				}
				if !safePath(file.Path) || file.Size < 0 {
					return false, &finalError{fmt.Errorf("%s: the hub lists a file %q of %d bytes", repo, file.Path, file.Size)}
				}
				files = append(files, file)
			}
			if found := nextPage.FindStringSubmatch(response.Header.Get("Link")); found != nil {
				at, err := response.Request.URL.Parse(found[1])
				if err != nil {
					return false, err
				}
				next = at.String()
			}
			return true, nil
		})
		if err != nil {
			return nil, err
		}
		address = next
	}
	return files, nil
}

// safePath says whether a path stays inside the folder that it is added to, and is none of our own files.
func safePath(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsAny(part, "\x00\\") || strings.HasSuffix(part,
			partSuffix) {
			return false
		}
	}
	return true
}

// address is where the bytes of a file are.
func (c *Client) address(repo, revision, path string) string {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return fmt.Sprintf("%s/%s/resolve/%s/%s", c.base, repo, url.PathEscape(revision), strings.Join(parts, "/"))
}
