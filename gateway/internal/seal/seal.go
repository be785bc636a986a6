// Package seal protects what the gateway hands to clients for safekeeping: reasoning that travels in encrypted_content,
// and the signatures of thinking blocks. Sealed text is opaque and authenticated; only a gateway with the same key can
// open it.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// KeyBytes is the length of a key.
const KeyBytes = 32

// Key is the secret of a gateway.
type Key [KeyBytes]byte

// NewKey draws a key that lasts as long as the process.
func NewKey() Key {
	var k Key
	_, _ = rand.Read(k[:]) // never fails
	return k
}

// Sealer seals and signs for one purpose; what was sealed for another does not open. It is safe for concurrent use.
type Sealer struct {
	aead cipher.AEAD
	mac  []byte
}

// New derives the keys of a purpose, for example "responses.reasoning".
func New(key Key, purpose string) *Sealer {
	s := &Sealer{mac: derive(key, purpose+".mac")}
	block, err := aes.NewCipher(derive(key, purpose+".aead"))
	if err == nil {
		s.aead, err = cipher.NewGCMWithRandomNonce(block)
	}
	if err != nil {
		// Only a key of a wrong length can fail.
		panic(err)
	}
	return s
}

func derive(key Key, info string) []byte {
	out, err := hkdf.Key(sha256.New, key[:], nil, "tandem.gateway."+info, KeyBytes)
	if err != nil {
		panic(fmt.Sprintf("seal: %v", err)) // only for lengths above 255 hashes
	}
	return out
}

// Seal encrypts and authenticates text. Sealing the same text twice gives different results.
func (s *Sealer) Seal(text string) string {
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, []byte(text), nil))
}

// Open returns the text of what Seal made; false for everything else.
func (s *Sealer) Open(sealed string) (string, bool) {
	raw, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil {
		return "", false
	}
	text, err := s.aead.Open(nil, nil, raw, nil)
	return string(text), err == nil
}

// Sign returns the keyed digest of text in base64.
func (s *Sealer) Sign(text []byte) string {
	h := hmac.New(sha256.New, s.mac)
	h.Write(text)
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}
