const search = document.getElementById("search");
const count = document.getElementById("count");
const rows = [...document.querySelectorAll("tbody tr")];
const texts = rows.map((row) => row.textContent.toLowerCase());
search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let matches = 0;
  rows.forEach((row, index) => {
    const isMatch = words.every((word) => texts[index].includes(word));
    row.hidden = !isMatch;
    matches += isMatch;
  });
  count.textContent = `${matches} of ${rows.length} files`;
});
