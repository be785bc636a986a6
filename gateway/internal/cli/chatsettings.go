package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// chatSettings are what a conversation asks for besides its messages; nil and empty stand for the gateway's defaults.
type chatSettings struct {
	system      string
	temperature *float64
	topP        *float64
	topK        *int64
	seed        *int64
	maxTokens   *int64
	think       *bool
	speculation *speculationJSON
}

// settings are those of the command line.
func (c *RunCmd) settings() chatSettings {
	s := chatSettings{system: c.System, temperature: c.Temperature, topP: c.TopP, topK: c.TopK, seed: c.Seed,
		think: c.Thinking, speculation: c.mode}
	if c.MaxTokens > 0 {
		n := int64(c.MaxTokens)
		s.maxTokens = &n
	}
	return s
}

// request asks for the next message of a conversation.
func (s *chatSettings) request(messages []chatMessage) chatRequest {
	if s.system != "" {
		messages = append([]chatMessage{{Role: "system", Content: s.system}}, messages...)
	}
	r := chatRequest{Messages: messages, Temperature: s.temperature, TopP: s.topP, TopK: s.topK, Seed: s.seed,
		EnableThinking: s.think, Speculation: s.speculation}
	if s.maxTokens != nil {
		r.MaxTokens = int(*s.maxTokens)
	}
	return r
}

// chatSetting is one that /set changes. set takes an empty value for the default; get returns the empty text for it.
type chatSetting struct {
	name, values, help string
	get                func(*chatSettings) string
	set                func(*chatSettings, string) error
}

var chatSettingFields = []chatSetting{
	{"system", "TEXT", "System message.", func(s *chatSettings) string { return s.system },
		func(s *chatSettings, value string) error { s.system = value; return nil }},
	number("temperature", "NUMBER", "0 = always the likeliest token.", 0, 2,
		func(s *chatSettings) **float64 { return &s.temperature }),
	number("top_p", "NUMBER", "Share of probability that tokens are drawn from.", 0, 1,
		func(s *chatSettings) **float64 { return &s.topP }),
	whole("top_k", "Number of tokens that are drawn from, 0 = all.", 0, func(s *chatSettings) **int64 { return &s.topK }),
	whole("seed", "The same seed gives the same answer.", -1<<63, func(s *chatSettings) **int64 { return &s.seed }),
	whole("max_tokens", "Longest answer.", 1, func(s *chatSettings) **int64 { return &s.maxTokens }),
	{"think", "on|off", "Let the model reason before it answers.",
		func(s *chatSettings) string {
			if s.think == nil {
				return ""
			}
			return map[bool]string{true: "on", false: "off"}[*s.think]
		},
		func(s *chatSettings, value string) error {
			switch value {
			case "":
				s.think = nil
			case "on", "off":
				on := value == "on"
				s.think = &on
			default:
				return fmt.Errorf("%q is not on or off", value)
			}
			return nil
		}},
	{"speculation", "MODE", "auto, off, lookup, chain, tree or tree:BUDGET; it changes speed, never the answer.",
		func(s *chatSettings) string {
			if s.speculation.Budget > 0 {
				return fmt.Sprintf("%s:%d", s.speculation.Mode, s.speculation.Budget)
			}
			return s.speculation.Mode
		},
		func(s *chatSettings, value string) error {
			if value == "" {
				value = "auto"
			}
			mode, err := parseSpeculation(value)
			if err != nil {
				return errors.New(strings.TrimPrefix(err.Error(), "--speculation: "))
			}
			s.speculation = mode
			return nil
		}},
}

func number(name, values, help string, low, high float64, field func(*chatSettings) **float64) chatSetting {
	return chatSetting{name, values, help,
		func(s *chatSettings) string {
			if v := *field(s); v != nil {
				return strconv.FormatFloat(*v, 'g', -1, 64)
			}
			return ""
		},
		func(s *chatSettings, value string) error {
			if value == "" {
				*field(s) = nil
				return nil
			}
			v, err := strconv.ParseFloat(value, 64)
			if err != nil || !(v >= low && v <= high) {
				return fmt.Errorf("%q is no number from %g to %g", value, low, high)
			}
			*field(s) = &v
			return nil
		}}
}

func whole(name, help string, low int64, field func(*chatSettings) **int64) chatSetting {
	return chatSetting{name, "NUMBER", help,
		func(s *chatSettings) string {
			if v := *field(s); v != nil {
				return strconv.FormatInt(*v, 10)
			}
			return ""
		},
		func(s *chatSettings, value string) error {
			if value == "" {
				*field(s) = nil
				return nil
			}
			v, err := strconv.ParseInt(value, 10, 64)
			if err != nil || v < low {
				return fmt.Errorf("%q is no whole number from %d", value, low)
			}
			*field(s) = &v
			return nil
		}}
}
