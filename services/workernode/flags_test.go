package workernode

import "testing"

func TestListenerWarnings(t *testing.T) {
	for listen, want := range map[string]int{"127.0.0.1:0": 0, "unix:///x.sock": 0, "localhost:1": 0, "0.0.0.0:9200": 1,
		":9200": 1, "10.1.2.3:9200": 1} {
		if got := (&Flags{Listen: listen}).Check(); len(got) != want || want > 0 && got[0].Flag != "listen" {
			t.Errorf("%s: %v", listen, got)
		}
	}
}
