package app

import (
	"reflect"
	"strings"
	"testing"
)

// TestPlannedSettingsAreRefused: each setting of a feature that is not there yet is refused by its flag's name.
func TestPlannedSettingsAreRefused(t *testing.T) {
	for i := range reflect.TypeFor[Planned]().NumField() {
		c := Defaults()
		field := reflect.TypeFor[Planned]().Field(i)
		switch v := reflect.ValueOf(&c.Planned).Elem().Field(i); v.Kind() {
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int:
			v.SetInt(1)
		case reflect.String:
			v.SetString("key")
		default:
			t.Fatalf("%s has kind %s", field.Name, v.Kind())
		}
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), "--") || !strings.Contains(err.Error(), "does not have the feature") {
			t.Errorf("%s: %v", field.Name, err)
		}
	}
}
