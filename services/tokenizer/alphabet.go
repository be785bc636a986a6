package tokenizer

// Vocabulary files write bytes as printable characters. Bytes 33–126, 161–172 and 174–255 stand for the code point of
// the same number; the other 68, in increasing order, for U+0100 … U+0143 (space is U+0120, newline U+010A).

// alphabetSize is one more than the largest code point of the alphabet.
const alphabetSize = 0x144

// byteRunes holds the character of each byte.
var byteRunes = func() (t [256]rune) {
	next := rune(0x100)
	for b := range t {
		if (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 {
			t[b] = rune(b)
		} else {
			t[b] = next
			next++
		}
	}
	return t
}()

// runeBytes is the inverse: the byte of each character, or -1.
var runeBytes = func() (t [alphabetSize]int16) {
	for i := range t {
		t[i] = -1
	}
	for b, r := range byteRunes {
		t[r] = int16(b)
	}
	return t
}()

// appendPlain appends the bytes that a vocabulary string stands for. A character outside the alphabet (a malformed
// entry) stands for itself.
func appendPlain(dst []byte, vocabText string) []byte {
	for _, r := range vocabText {
		if r < alphabetSize && runeBytes[r] >= 0 {
			dst = append(dst, byte(runeBytes[r]))
		} else {
			dst = append(dst, string(r)...)
		}
	}
	return dst
}
