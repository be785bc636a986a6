package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/lineedit"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/wholefile"
)

// chatSession is a conversation in the terminal.
type chatSession struct {
	run    *RunCmd
	env    *env
	client *chatClient
	// settings start as the flags say; /set changes them.
	settings chatSettings
	messages []chatMessage // without the system message
	last     string        // id of the newest answered request
}

// converse holds a conversation until the person leaves.
func (c *RunCmd) converse(ctx context.Context, e *env, client *chatClient, terminal *os.File) error {
	path, err := c.historyPath()
	if err != nil {
		return err
	}
	editor, err := lineedit.New(lineedit.Config{In: terminal, Out: e.out, Typed: c.typed, HistoryFile: path,
		Warn: func(err error) { fmt.Fprintf(e.err, "tandem: %v\n", err) }})
	if err != nil {
		return err
	}
	defer editor.Close()
	// One Ctrl-C too many, after an answer and before the next prompt, must not lose the conversation.
	e.stayOnInterrupt()
	s := &chatSession{run: c, env: e, client: client, settings: c.settings()}
	fmt.Fprintln(e.out, "Ask something. /help lists the commands, Ctrl-D leaves.")
	for {
		fmt.Fprintln(e.out)
		message, err := editor.Read(ctx, "> ")
		switch {
		case errors.Is(err, lineedit.ErrInterrupt):
			fmt.Fprintln(e.out, "Ctrl-D or /bye leaves, /clear starts over.")
			continue
		case err != nil || ctx.Err() != nil:
			fmt.Fprintln(e.out)
			return nil
		case message.Command:
			if leave, err := s.command(message.Text); leave {
				return nil
			} else if err != nil {
				fmt.Fprintf(e.err, "tandem: %v\n", err)
			}
			continue
		case message.Text == "":
			continue
		}
		if err := s.ask(ctx, message.Text); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			fmt.Fprintf(e.err, "tandem: %v\n", err)
		}
	}
}

// ask adds a question and its answer to the conversation; without an answer the question is dropped again.
func (s *chatSession) ask(ctx context.Context, question string) error {
	messages := append(slices.Clone(s.messages), chatMessage{Role: "user", Content: question})
	reply, err := s.run.answer(ctx, s.env, s.client, s.settings.request(messages))
	if reply.id != "" {
		s.last = reply.id
	}
	if err != nil || reply.text == "" && reply.reasoning == "" {
		return err
	}
	s.messages = append(messages,
		chatMessage{Role: "assistant", Content: reply.text, Reasoning: reply.reasoning})
	return nil
}

// historyPath is where earlier questions are kept, empty for nowhere.
func (c *RunCmd) historyPath() (string, error) {
	if c.HistoryFile == noHistory {
		return "", nil
	}
	if c.HistoryFile != "" {
		return c.HistoryFile, nil
	}
	dir := os.Getenv("XDG_STATE_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("%w; --history-file says where questions are kept, %s keeps none", err, noHistory)
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "tandem", "history"), nil
}

// noHistory is the --history-file that keeps nothing.
const noHistory = "none"

// chatCommand is a line that begins with a slash.
type chatCommand struct {
	names []string
	args  string // as the help shows them
	help  string
	run   func(s *chatSession, args string) error
}

var errLeave = errors.New("leave")

// chatCommands lists the commands in the order of the help, which is one of them.
func chatCommands() []chatCommand {
	return []chatCommand{
		{[]string{"/help", "/?"}, "", "Show this.", func(s *chatSession, _ string) error {
			s.help()
			return nil
		}},
		{[]string{"/set"}, "[NAME [VALUE]]", "Show or change a setting; without a value back to the default.",
			(*chatSession).set},
		{[]string{"/show"}, "", "Show the model, the settings and the size of the conversation.", (*chatSession).show},
		{[]string{"/save"}, "FILE", "Write conversation and settings to a file.", (*chatSession).save},
		{[]string{"/load"}, "FILE", "Continue a conversation from a file.", (*chatSession).load},
		{[]string{"/clear"}, "", "Forget the conversation; settings stay.", func(s *chatSession, _ string) error {
			s.messages = nil
			return nil
		}},
		{[]string{"/bye", "/exit", "/quit"}, "", "Leave, as Ctrl-D does.", func(*chatSession,
			string) error {
			return errLeave
		}},
	}
}

// command runs a line that begins with a slash. It never goes to the model.
func (s *chatSession) command(line string) (leave bool, err error) {
	name, args, _ := strings.Cut(line, " ")
	var names []string
	for _, c := range chatCommands() {
		if slices.Contains(c.names, name) {
			err := c.run(s, strings.TrimSpace(args))
			return errors.Is(err, errLeave), err
		}
		names = append(names, c.names...)
	}
	return false, fmt.Errorf("there is no command %s%s; /help lists them, a space before it makes it a question", name,
		suggest(name, names))
}

// suggest is ", did you mean …?" with the closest of names, empty when none is close.
func suggest(word string, names []string) string {
	best, closest := "", 3
	for _, name := range names {
		distance := config.EditDistance(word, name)
		if len(word) > 2 && strings.HasPrefix(name, word) {
			distance = 1
		}
		if distance < closest {
			best, closest = name, distance
		}
	}
	if best == "" {
		return ""
	}
	return ", did you mean " + best + "?"
}

func (s *chatSession) help() {
	out := s.env.out
	for _, c := range chatCommands() {
		fmt.Fprintf(out, "  %-26s %s\n", strings.TrimSpace(strings.Join(c.names, ", ")+" "+c.args), c.help)
	}
	fmt.Fprintln(out, "\nSettings of /set:")
	for _, f := range chatSettingFields {
		fmt.Fprintf(out, "  %-26s %s\n", f.name+" "+f.values, f.help)
	}
	fmt.Fprint(out, `
  """ begins and ends a message of several lines, \ at the end of a line continues it;
  pasted text is one message. Ctrl-C stops an answer. Arrow keys and Ctrl-R find earlier lines.
`)
}

// show is /show.
func (s *chatSession) show(string) error {
	out := s.env.out
	if model := s.client.modelName(s.env.ctx); model != "" {
		fmt.Fprintf(out, "  %-14s %s\n", "model", model)
	}
	for _, f := range chatSettingFields {
		fmt.Fprintf(out, "  %-14s %s\n", f.name, orDash(f.get(&s.settings)))
	}
	bytes := 0
	for _, m := range s.messages {
		bytes += len(m.Content)
	}
	fmt.Fprintf(out, "  %-14s %d messages, %d bytes\n", "conversation", len(s.messages), bytes)
	if s.last != "" {
		fmt.Fprintf(out, "  %-14s %s (tandem trace shows where its time went)\n", "last request", s.last)
	}
	return nil
}

// set is /set.
func (s *chatSession) set(args string) error {
	name, value, _ := strings.Cut(args, " ")
	var names []string
	for _, f := range chatSettingFields {
		if f.name == name {
			if err := f.set(&s.settings, strings.TrimSpace(value)); err != nil {
				return fmt.Errorf("/set %s: %w", name, err)
			}
			fmt.Fprintf(s.env.out, "  %s = %s\n", name, orDash(f.get(&s.settings)))
			return nil
		}
		names = append(names, f.name)
	}
	if name == "" {
		return s.show("")
	}
	return fmt.Errorf("/set: there is no setting %s%s; /help lists them", name, suggest(name, names))
}

// savedChat is the file of /save.
type savedChat struct {
	Tandem   string            `json:"tandem"` // what the file is
	Settings map[string]string `json:"settings"`
	Messages []chatMessage     `json:"messages"`
}

const savedChatKind = "chat 1"

func chatPath(command, args string) (string, error) {
	if args == "" {
		return "", fmt.Errorf("%s: needs the name of a file", command)
	}
	if rest, ok := strings.CutPrefix(args, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("%s: %w", command, err)
		}
		return filepath.Join(home, rest), nil
	}
	return args, nil
}

// save is /save. The file is whole or not there, and its owner's only.
func (s *chatSession) save(args string) error {
	path, err := chatPath("/save", args)
	if err != nil {
		return err
	}
	saved := savedChat{Tandem: savedChatKind, Settings: map[string]string{}, Messages: s.messages}
	for _, f := range chatSettingFields {
		if value := f.get(&s.settings); value != "" {
			saved.Settings[f.name] = value
		}
	}
	data, err := json.MarshalIndent(saved, "", "  ")
	if err != nil {
		return fmt.Errorf("/save: %w", err)
	}
	if err := wholefile.Write(path, append(data, '\n')); err != nil {
		return fmt.Errorf("/save: %w", err)
	}
	fmt.Fprintf(s.env.out, "  %d messages in %s\n", len(s.messages), path)
	return nil
}

// load is /load. A file that cannot be used changes nothing.
func (s *chatSession) load(args string) error {
	path, err := chatPath("/load", args)
	if err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("/load: %w", err)
	}
	defer file.Close()
	var saved savedChat
	if err := json.NewDecoder(io.LimitReader(file, 64<<20)).Decode(&saved); err != nil || saved.Tandem != savedChatKind {
		return fmt.Errorf("/load: %s is no file that /save has written", path)
	}
	var settings chatSettings
	settings.speculation = &speculationJSON{Mode: "auto"}
	for _, f := range chatSettingFields {
		if value, ok := saved.Settings[f.name]; ok {
			if err := f.set(&settings, value); err != nil {
				return fmt.Errorf("/load: %s: %s: %w", path, f.name, err)
			}
		}
	}
	s.settings, s.messages = settings, saved.Messages
	fmt.Fprintf(s.env.out, "  %d messages from %s\n", len(s.messages), path)
	return nil
}
