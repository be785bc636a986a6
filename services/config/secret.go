package config

// Secret is a setting that is never shown: every way of printing it gives "***", or nothing when it is empty.
type Secret string

// Reveal returns the value for the one place that needs it.
func (s Secret) Reveal() string { return string(s) }

// String masks the value.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "***"
}

// GoString masks the value for %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText masks the value for JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the value.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = Secret(text)
	return nil
}
