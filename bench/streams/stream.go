package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// stream is one request on a connection of its own. It reads as plainly as possible: the client shares the processors
// with what it measures.
type stream struct {
	address string
	tokens  int
}

func open(base string, tokens int) stream {
	return stream{strings.TrimPrefix(base, "http://"), tokens}
}

// result of a stream.
type result struct {
	at     []time.Time // arrival of every event with text
	tokens int         // as the usage says
}

var (
	dataLine  = []byte("data: ")
	content   = []byte(`"content":"`)
	usageLine = []byte(`"usage":{`)
)

// read sends the request and reads the events to the end.
func (s stream) read() (result, error) {
	r := result{at: make([]time.Time, 0, s.tokens)}
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	body := fmt.Sprintf(`{"messages":[{"role":"user","content":"count"}],"max_tokens":%d,"stream":true,"speculation":{"mode":"off"},"stream_options":{"include_usage":true}}`, s.tokens)
	if _, err := fmt.Fprintf(conn,
		"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body); err != nil {
		return r, err
	}
	response, err := http.ReadResponse(bufio.NewReaderSize(conn, 4<<10), nil)
	if err != nil {
		return r, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return r, fmt.Errorf("status %s", response.Status)
	}
	lines := bufio.NewReaderSize(response.Body, 4<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return r, fmt.Errorf("after %d events: %w", len(r.at), err)
		}
		event, ok := bytes.CutPrefix(line, dataLine)
		switch {
		case !ok:
		case bytes.HasPrefix(event, []byte("[DONE]")):
			return r, nil
		case bytes.Contains(event, usageLine):
			var last struct {
				Usage struct {
					CompletionTokens int `json:"completion_tokens"`
				}
			}
			if err := json.Unmarshal(event, &last); err != nil {
				return r, err
			}
			r.tokens = last.Usage.CompletionTokens
		default:
			if _, text, ok := bytes.Cut(event, content); ok && text[0] != '"' {
				r.at = append(r.at, time.Now())
			}
		}
	}
}
