package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestKernelOfStub(t *testing.T) {
	for _, c := range []struct{ stub, kernel string }{
		{"_ZN3tnd3gpu12_GLOBAL__N_127__device_stub__embed_kernelENS0_9EmbedArgsE",
			"_ZN3tnd3gpu12_GLOBAL__N_112embed_kernelENS0_9EmbedArgsE"},
		{"_ZN12_GLOBAL__N_116__device_stub__aI1VEEvT_i", "_ZN12_GLOBAL__N_11aI1VEEvT_i"},
		{"_ZL17__device_stub__stPi", "_ZL2stPi"},
		{"_Z25__device_stub__unused_extPi", "_Z10unused_extPi"},
		{"_ZN1n1S21__device_stub__memberIiEEvPT_", "_ZN1n1S6memberIiEEvPT_"},
		{"__device_stub__c_kernel", "c_kernel"},
	} {
		if got, err := kernelOfStub(c.stub); got != c.kernel || err != nil {
			t.Errorf("%s: %s, %v, want %s", c.stub, got, err, c.kernel)
		}
	}
	for _, stub := range []string{
		"__device_stub__", "_Z15__device_stub__", "_Z99__device_stub__f", "_ZN1aIiE16__device_stub__fEv", "f__device_stub__",
		"_Z99999999999999999999__device_stub__f", "_Z3foo", "_Z",
	} {
		if got, err := kernelOfStub(stub); err == nil {
			t.Errorf("%s passed as the stub of %q", stub, got)
		}
	}
}

// elfFile makes a little ELF file of the 64-bit kind: a table of symbols, its names, and a section of HIP code if there
// are bundles. debug/elf only reads.
func elfFile(t *testing.T, machine elf.Machine, table elf.SectionType, symbols []elf.Symbol, bundles []byte) []byte {
	t.Helper()
	var entries bytes.Buffer
	put := func(w *bytes.Buffer, v any) {
		if err := binary.Write(w, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	put(&entries, elf.Sym64{})
	names := []byte{0}
	for _, s := range symbols {
		put(&entries, elf.Sym64{Name: uint32(len(names)), Info: s.Info, Shndx: uint16(s.Section)})
		names = append(append(names, s.Name...), 0)
	}
	sections := []struct {
		kind elf.SectionType
		name string
		data []byte
		link uint32
		size uint64 // of an entry
	}{
		{},
		{kind: table, name: ".symbols", data: entries.Bytes(), link: 2, size: elf.Sym64Size},
		{kind: elf.SHT_STRTAB, name: ".strtab", data: names},
		{kind: elf.SHT_STRTAB, name: ".shstrtab"},
		{kind: elf.SHT_PROGBITS, name: ".hip_fatbin", data: bundles},
	}
	if bundles == nil {
		sections = sections[:4]
	}
	at := make([]uint32, len(sections))
	for i, s := range sections {
		at[i] = uint32(len(sections[3].data))
		sections[3].data = append(append(sections[3].data, s.name...), 0)
	}
	var headers, body bytes.Buffer
	for i, s := range sections {
		put(&headers, elf.Section64{Name: at[i], Type: uint32(s.kind), Off: uint64(64 + body.Len()),
			Size: uint64(len(s.data)),
			Link: s.link, Entsize: s.size})
		body.Write(s.data)
	}
	var out bytes.Buffer
	put(&out, elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Shoff: uint64(64 + body.Len()),
		Ehsize: 64, Shentsize: 64, Shnum: uint16(len(sections)), Shstrndx: 3,
	})
	out.Write(body.Bytes())
	out.Write(headers.Bytes())
	return out.Bytes()
}

func function(name string) elf.Symbol {
	return elf.Symbol{Name: name, Info: elf.ST_INFO(elf.STB_LOCAL, elf.STT_FUNC), Section: 1}
}

// code makes the code of one processor, with the descriptors of kernels in a table of the given kind.
func code(t *testing.T, table elf.SectionType, kernels ...string) []byte {
	t.Helper()
	symbols := []elf.Symbol{{Name: "_Z5otherv.kd", Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_OBJECT)}} // undefined
	for _, k := range kernels {
		symbols = append(symbols, function(k),
			elf.Symbol{Name: k + ".kd", Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_OBJECT), Section: 1})
	}
	return elfFile(t, elf.EM_AMDGPU, table, symbols, nil)
}

type part struct {
	id   string
	code []byte
}

const gfx = "hipv4-amdgcn-amd-amdhsa--gfx"

// bundle puts parts after a head, as the compiler does: an empty one for the host first, zeros at the end.
func bundle(parts ...part) []byte {
	parts = slices.Insert(slices.Clone(parts), 0, part{id: "host-x86_64-unknown-linux--"})
	const bodyAt = 512
	head := binary.LittleEndian.AppendUint64([]byte(bundleMagic), uint64(len(parts)))
	body := make([]byte, bodyAt)
	for _, p := range parts {
		for _, n := range []int{len(body), len(p.code), len(p.id)} {
			head = binary.LittleEndian.AppendUint64(head, uint64(n))
		}
		head = append(head, p.id...)
		body = append(body, p.code...)
	}
	copy(body[:bodyAt], head)
	return append(body, 0, 0, 0)
}

// host makes a HIP object with stubs of the kernels _Z1<name>v, and with things that are none.
func host(t *testing.T, bundles []byte, names ...string) []byte {
	t.Helper()
	symbols := []elf.Symbol{
		function("_Z4mainv"),
		{Name: "_Z1av", Info: elf.ST_INFO(elf.STB_LOCAL, elf.STT_OBJECT), Section: 1},
		{Name: "_Z16__device_stub__xv", Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_NOTYPE)}, // undefined
	}
	for _, n := range names {
		symbols = append(symbols, function("_Z16__device_stub__"+n+"v"))
	}
	return elfFile(t, elf.EM_X86_64, elf.SHT_SYMTAB, symbols, bundles)
}

// hipFolder makes a build folder with the object a.o.
func hipFolder(t *testing.T, archs string, object []byte) string {
	t.Helper()
	dir := folder(t, "hip", "clang version 1\n"+archs, "")
	if err := os.WriteFile(filepath.Join(dir, "a.o"), object, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCheckObjects(t *testing.T) {
	two := func(t *testing.T, on1100, on1030 []byte) []byte {
		return bundle(part{gfx + "1100", on1100}, part{gfx + "1030", on1030})
	}
	for _, c := range []struct {
		name   string
		archs  string
		object func(t *testing.T) []byte
		want   []string // the lines of the failure
	}{
		{"the same kernels", "gfx1100 gfx1030", func(t *testing.T) []byte {
			return host(t, two(t, code(t, elf.SHT_SYMTAB, "_Z1av", "_Z1bv"), code(t, elf.SHT_DYNSYM, "_Z1bv", "_Z1av")), "a",
				"b")
		}, nil},
		{"several bundles", "gfx1100", func(t *testing.T) []byte {
			one := bundle(part{gfx + "1100", code(t, elf.SHT_DYNSYM, "_Z1av")})
			return host(t, append(one, bundle(part{gfx + "1100", code(t, elf.SHT_DYNSYM, "_Z1bv")})...), "a", "b")
		}, nil},
		{"no kernels", "gfx1100", func(t *testing.T) []byte { return host(t, nil) }, nil},
		{"no kernels, empty code", "gfx1100 gfx1030", func(t *testing.T) []byte {
			return host(t, bundle(part{gfx + "1100", code(t, elf.SHT_DYNSYM)}))
		}, nil},
		{"another kernel on one processor", "gfx1100 gfx1030", func(t *testing.T) []byte {
			return host(t, two(t, code(t, elf.SHT_DYNSYM, "_Z1wv"), code(t, elf.SHT_DYNSYM, "_Z1dv")), "d")
		}, []string{
			"  a.o: the host launches a kernel that the code for gfx1100 lacks: d()",
			"  a.o: the code for gfx1100 holds a kernel that the host lacks: w()",
		}},
		{"code without stub on a processor that nobody asked for", "gfx1100", func(t *testing.T) []byte {
			return host(t, bundle(part{gfx + "1100", code(t, elf.SHT_DYNSYM)},
				part{gfx + "90a:xnack-", code(t, elf.SHT_DYNSYM, "_Z1wv")}))
		}, []string{"  a.o: the code for gfx90a:xnack- holds a kernel that the host lacks: w()"}},
		{"a processor without code", "gfx1100 gfx1030", func(t *testing.T) []byte {
			return host(t, bundle(part{gfx + "1100", code(t, elf.SHT_DYNSYM, "_Z1av")}), "a")
		}, []string{"  a.o: the host launches kernels, and there is no code for gfx1030"}},
		{"no bundle", "gfx1100", func(t *testing.T) []byte { return host(t, nil, "a") },
			[]string{"  a.o: the host launches kernels, and there is no code for gfx1100"}},
		{"a stub that cannot be read", "gfx1100", func(t *testing.T) []byte {
			return elfFile(t, elf.EM_X86_64, elf.SHT_SYMTAB, []elf.Symbol{function("_Z99__device_stub__av")}, nil)
		}, []string{"  a.o: cannot tell the kernel of the stub _Z99__device_stub__av"}},
		{"no ELF", "gfx1100", func(*testing.T) []byte { return []byte("text") }, []string{"  a.o: object: EOF"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cases, err := checkObjects([]string{hipFolder(t, c.archs, c.object(t))})
			if err != nil || len(cases) != 1 || cases[0].Name != "hip a kernel names" {
				t.Fatalf("%+v, %v", cases, err)
			}
			got := ""
			if f := cases[0].Failure; f != nil {
				got = f.Message
			}
			if want := strings.Join(c.want, "\n"); got != want {
				t.Errorf("failure:\n%s\nwant:\n%s", got, want)
			}
			if failed := show(cases); failed != min(1, len(c.want)) {
				t.Errorf("%d cases count as failed", failed)
			}
		})
	}
}

func TestCheckObjectsOfFolders(t *testing.T) {
	cuda := folder(t, "cuda", "nvcc 1", ptxas)
	if err := os.WriteFile(filepath.Join(cuda, "a.o"), host(t, nil, "a"), 0o644); err != nil {
		t.Fatal(err)
	}
	if cases, err := checkObjects([]string{cuda}); err != nil || len(cases) != 0 {
		t.Errorf("CUDA: %+v, %v", cases, err)
	}
	hip := folder(t, "hip", "clang version 1\ngfx1100", clang)
	if cases, err := checkObjects([]string{hip}); err != nil || len(cases) != 1 || cases[0].Failure == nil {
		t.Errorf("a report without an object: %+v, %v", cases, err)
	}
	if err := os.Remove(filepath.Join(hip, "a.o.res")); err != nil {
		t.Fatal(err)
	}
	if _, err := checkObjects([]string{hip}); err == nil {
		t.Error("a folder without objects passed")
	}
}

func TestDamagedBundle(t *testing.T) {
	whole := bundle(part{gfx + "1100", code(t, elf.SHT_DYNSYM, "_Z1av")})
	entry := len(bundleMagic) + 8 + 24 + len("host-x86_64-unknown-linux--") // where the second entry's numbers begin
	set := func(at int, n uint64) []byte {
		damaged := slices.Clone(whole)
		binary.LittleEndian.PutUint64(damaged[at:], n)
		return damaged
	}
	const huge = ^uint64(0)
	for _, c := range []struct {
		name, want string
		data       []byte
	}{
		{"another magic", "bundle at byte 0: it does not begin with __CLANG_OFFLOAD_BUNDLE__", append([]byte("x"), whole...)},
		{"rubbish after", "it does not begin with", append(slices.Clone(whole), "x"...)},
		{"compressed", "the bundle at byte 3 is compressed", []byte("\x00\x00\x00CCOB\x02")},
		{"too many entries", "it ends inside its head", set(len(bundleMagic), huge)},
		{"offset in the head", "gfx1100 has", set(entry, 8)},
		{"offset after the end", "gfx1100 has", set(entry, huge)},
		{"size over the end", "gfx1100 has", set(entry+8, huge)},
		{"id over the end", "it ends inside its head", set(entry+16, huge)},
		{"no processor", `entry "hipv4-amdgcn-amd-amdhsa--amdgcnspirv" names no processor`,
			bundle(part{"hipv4-amdgcn-amd-amdhsa--amdgcnspirv", nil})},
		{"empty code", "code for gfx1100: ", bundle(part{gfx + "1100", nil})},
		{"code of another machine", "code for gfx1100: the machine is EM_X86_64", bundle(part{gfx + "1100", host(t, nil)})},
	} {
		_, err := readObject(bytes.NewReader(host(t, c.data, "a")))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	zeros := len(whole) - len(bytes.TrimRight(whole, "\x00"))
	for n := 1; n < len(whole)-zeros; n++ {
		if o, err := readObject(bytes.NewReader(host(t, whole[:n], "a"))); err == nil {
			t.Fatalf("cut at byte %d of %d: %+v", n, len(whole), o)
		}
	}
	object := host(t, whole, "a")
	for n := range object {
		o, err := readObject(bytes.NewReader(object[:n]))
		if err == nil {
			t.Fatalf("object cut at byte %d of %d: %+v", n, len(object), o)
		}
	}
}
