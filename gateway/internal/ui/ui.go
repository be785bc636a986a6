// Package ui holds the live page: HTML, style and scripts as they are served, written by hand and without parts from
// elsewhere, so that it works offline.
package ui

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"path"
)

//go:embed page
var files embed.FS

// File is one file of the page.
type File struct {
	Name string // index.html, or the path below /ui/
	Type string
	ETag string
	Body []byte
}

// Files returns all of them.
func Files() ([]File, error) {
	var list []File
	err := fs.WalkDir(files, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		list = append(list, File{Name: path.Base(name), Type: typeOf(name), Body: body,
			ETag: `"` + hex.EncodeToString(sum[:8]) + `"`})
		return nil
	})
	return list, err
}

// typeOf is the Content-Type of a file. Tables of the system may say otherwise, and browsers refuse scripts that are
// not called one.
func typeOf(name string) string {
	switch path.Ext(name) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".html":
		return "text/html; charset=utf-8"
	}
	return mime.TypeByExtension(path.Ext(name))
}
