//go:build race

package tensorwire

const raceEnabled = true
