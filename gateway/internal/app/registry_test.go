package app

import (
	"strings"
	"testing"
)

func TestParseRegistry(t *testing.T) {
	for text, want := range map[string]registryAt{
		"embedded":              {kind: RegistryEmbedded},
		"etcd://a:1,b:2/x/y":    {kind: kindEtcd, prefix: "x/y"},
		"kubernetes://":         {kind: kindKubernetes},
		"kubernetes://tandem-1": {kind: kindKubernetes, namespace: "tandem-1"},
	} {
		got, err := parseRegistry(text)
		if err != nil || got.kind != want.kind || got.prefix != want.prefix || got.namespace != want.namespace {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"kubernetes://A": "no name of a namespace", "kubernetes://a/b": "no name of a namespace",
		"zookeeper://a": "is not embedded", "etcd://a": "is not HOST:PORT",
	} {
		if _, err := parseRegistry(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
