//go:build !race

package tensorwire

const raceEnabled = false
