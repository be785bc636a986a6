package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const ptxas = `ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN3tnd12_GLOBAL__N_112scale_kernelEPfi' for 'sm_86'
ptxas info    : Function properties for _ZN3tnd12_GLOBAL__N_112scale_kernelEPfi
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Function properties for helper
    99 bytes stack frame, 99 bytes spill stores, 99 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem, 364 bytes cmem[0]
ptxas info    : Compiling entry function '_ZN3tnd11tmpl_kernelILi8EEEvPf' for 'sm_90a'
ptxas info    : Function properties for _ZN3tnd11tmpl_kernelILi8EEEvPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 360 bytes cmem[0]
`

const clang = `a.cu:4:1: remark: Function Name: _ZN3tnd11tmpl_kernelILi8EEEvPf [-Rpass-analysis=kernel-resource-usage]
    4 | source text
a.cu:4:1: remark:     SGPRs: 9 [-Rpass-analysis=kernel-resource-usage]
a.cu:4:1: remark:     VGPRs: 97 [-Rpass-analysis=kernel-resource-usage]
a.cu:4:1: remark:     ScratchSize [bytes/lane]: 12 [-Rpass-analysis=kernel-resource-usage]
a.cu:4:1: remark:     SGPRs Spill: 1 [-Rpass-analysis=kernel-resource-usage]
a.cu:4:1: remark:     VGPRs Spill: 2 [-Rpass-analysis=kernel-resource-usage]
a.cu:4:1: remark:     LDS Size [bytes/block]: 512 [-Rpass-analysis=kernel-resource-usage]
`

func TestParse(t *testing.T) {
	got, err := parse(strings.NewReader(ptxas), nil)
	want := []Kernel{
		{Arch: "sm_86", Name: "_ZN3tnd12_GLOBAL__N_112scale_kernelEPfi", Registers: 40, Spilled: 12,
			Scratch: 16, Shared: 512},
		{Arch: "sm_90", Name: "_ZN3tnd11tmpl_kernelILi8EEEvPf", Registers: 10},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("ptxas: %+v, %v", got, err)
	}
	got, err = parse(strings.NewReader(clang+clang), []string{"gfx1100", "gfx1030"})
	want = []Kernel{
		{Arch: "gfx1100", Name: "_ZN3tnd11tmpl_kernelILi8EEEvPf", Registers: 97, Spilled: 3, Scratch: 12, Shared: 512},
		{Arch: "gfx1030", Name: "_ZN3tnd11tmpl_kernelILi8EEEvPf", Registers: 97, Spilled: 3, Scratch: 12, Shared: 512},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("clang: %+v, %v", got, err)
	}
	if _, err = parse(strings.NewReader(clang+clang), []string{"gfx1100"}); err == nil {
		t.Error("clang: a report for more processors than known passed")
	}
}

func TestShort(t *testing.T) {
	for in, want := range map[string]string{
		"void tnd::gpu::(anonymous namespace)::f<tnd::gpu::Q4K, 8>(int)": "f<Q4K, 8>",
		"tnd::gpu::g(float*, void (*)(int))":                             "g",
		"void h<(tnd::gpu::Kind)3, (bool)1>(float*)":                     "h<(Kind)3, (bool)1>",
	} {
		if got := short(in); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

// folder makes a build folder with one report.
func folder(t *testing.T, name, compiler, report string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"compiler.txt": compiler + "\n", "a.o.res": report} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func failures(t *testing.T, table *Table, dir string) string {
	t.Helper()
	cases, err := compare(table, "", []string{dir})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, c := range cases {
		if c.Failure != nil {
			all = append(all, c.Failure.Message)
		}
	}
	return strings.Join(all, "\n")
}

func TestCompareAndRewrite(t *testing.T) {
	dir := folder(t, "cuda", "nvcc 1", ptxas)
	path := filepath.Join(t.TempDir(), "table.tsv")
	table, _ := readTable(path)
	if err := rewrite(table, path, "", []string{dir}); err != nil {
		t.Fatal(err)
	}
	reread := func() *Table {
		table, err := readTable(path)
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	if got := failures(t, reread(), dir); !strings.Contains(got, "scale_kernel spills 12") ||
		strings.Contains(got, "tmpl") {
		t.Errorf("a spill without reason: %s", got)
	}

	key := [3]string{"sm_86", "a", "scale_kernel"}
	table = reread()
	table.Notes[key] = "measured: faster so"
	if err := rewrite(table, path, "", []string{dir}); err != nil {
		t.Fatal(err)
	}
	if got := failures(t, reread(), dir); got != "" {
		t.Errorf("with a reason: %s", got)
	}

	other := folder(t, "cuda", "nvcc 1", strings.ReplaceAll(ptxas, "Used 10", "Used 11"))
	if got := failures(t, reread(), other); !strings.Contains(got, "tmpl_kernel<8> has registers 11") {
		t.Errorf("one register more: %q", got)
	}
	newer := folder(t, "cuda", "nvcc 2", strings.ReplaceAll(ptxas, "Used 10", "Used 11"))
	if got := failures(t, reread(), newer); got != "" {
		t.Errorf("another compiler: %q", got)
	}
	less := folder(t, "cuda", "nvcc 1",
		ptxas[:strings.Index(ptxas, "ptxas info    : Compiling entry function '_ZN3tnd11tmpl")])
	table = reread()
	table.Rows[[3]string{"sm_86", "a", "lost_kernel"}] = Kernel{Arch: "sm_86", File: "a", Name: "lost_kernel"}
	if got := failures(t, table, less); !strings.Contains(got, "sm_86 a lost_kernel") {
		t.Errorf("a row without kernel: %q", got)
	}
}

const sass = `
	code for sm_86
		Function : _ZN3tnd11tmpl_kernelILi8EEEvPf
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   LDS R4, [R2] ;
        /*0020*/                   IMMA.16832.S8.S8 R4, R8.ROW, R6.COL, R4 ;
        /*0030*/                   @P1 BRA 0x60 ;
        /*0040*/                   IADD3 R2, R2, 0x10, RZ ;
        /*0050*/              @!P0 BRA 0x10 ;
        /*0060*/               @P2 BRA 0x0 ;
        /*0070*/                   FADD R1, R1, R2 ;
        /*0080*/               @P0 BRA 0x70 ;
        /*0090*/                   EXIT ;
        /*00a0*/                   BRA 0xa0;
		Function : _Z1fv
        /*0000*/                   HMMA.16816.F32 R4, R8, R6, R4 ;
        /*0010*/              @!P0 BRA 0x0 ;
`

func TestLoops(t *testing.T) {
	got, err := loops(strings.NewReader(sass))
	want := []Loop{{Kernel: "_ZN3tnd11tmpl_kernelILi8EEEvPf", Instructions: 5, Matrix: 1},
		{Kernel: "_Z1fv", Instructions: 2, Matrix: 1}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	var out strings.Builder
	if err := printLoops(&out, strings.NewReader(sass)); err != nil ||
		!strings.Contains(out.String(), "   5 instructions,   1 matrix  tmpl_kernel<8>\n") {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := printLoops(&out, strings.NewReader("")); err == nil {
		t.Error("an empty listing passed")
	}
}
