// Formats of tables that a service does not read, found in the browser before anything is sent. Packets may be compressed
// with gzip, so its first bytes alone say nothing.

const MAGIC = [
  ["BZh91AY", "a compressed file (bzip2)", "Unpack it here, or"],
  ["\xfd7zXZ\0", "a compressed file (xz)", "Unpack it here, or"],
  ["\x28\xb5\x2f\xfd", "a compressed file (zstd)", "Unpack it here, or"],
  ["PK\x03\x04", "a zip archive or a workbook", "Unpack it, or save the sheet as CSV. For many files,"],
  ["7z\xbc\xaf\x27\x1c", "a 7z archive", "Unpack it here, or"],
  ["Rar!\x1a", "a rar archive", "Unpack it here, or"],
  ["PAR1", "Parquet"],
  ["ARROW1\0", "Arrow"],
  ["SIMPLE  =", "FITS"],
  ["\x89HDF", "HDF5"],
  ["CDF\x01", "NetCDF"],
  ["CDF\x02", "NetCDF"],
  ["\x93NUMPY", "NumPy"],
  ["SQLite format 3\0", "SQLite"],
  ["%PDF-", "PDF"],
  ["\xd0\xcf\x11\xe0", "an old Excel workbook", "Save the sheet as CSV, or"],
];
const NAMES = [
  [/\.(fits?|fts)(\.gz|\.fz)?$/i, "FITS"],
  [/\.(vot|votable)(\.gz)?$/i, "VOTable"],
  [/\.ecsv(\.gz)?$/i, "ECSV"],
  [/\.(parquet|pq|parq)$/i, "Parquet"],
  [/\.(csv|tsv|txt|dat|lc|tbl|xml|jsonl)\.(gz|bz2|xz|zst)$/i, "a compressed table", "Unpack it here, or"],
  [/\.(tar|tar\.\w+|tgz)$/i, "an archive", "Unpack it here, or"],
];
const HEAD = 4096;

/** What a file is if no service reads it over HTTP, by its first bytes and then by its name: [name, advice]; null otherwise. */
export function unreadFormat(name, bytes) {
  const head = String.fromCharCode(...bytes.subarray(0, HEAD));
  const start = head.replace(/^\xef\xbb\xbf/, "").trimStart();
  const [, found, advice] = MAGIC.find(([magic]) => head.startsWith(magic)) || [];
  if (found) return [found, advice];
  if (/^#\s?%ECSV/.test(start)) return ["ECSV"];
  if (start.startsWith("<") && /VOTABLE/i.test(start)) return ["VOTable"];
  if (/^(<!doctype html|<html)/i.test(start)) return ["a web page (HTML)", "Save the table as CSV, or"];
  if (/^(<\?xml|<!--)/i.test(start)) return ["XML"];
  const [, kind, how] = NAMES.find(([pattern]) => pattern.test(name)) || [];
  return kind ? [kind, how] : null;
}
